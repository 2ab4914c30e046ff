"""A cell under lock and key: certificates of an authority of its own, a token per role, and every
kind of listener.

with SecuredCell() as cell:
    cell.stranger           # certificates of another authority
    cell.client()           # an operator
    cell.listeners()        # every socket its processes listen on, from /proc
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dspark.client import Client
from faults.processes import FaultCell
from tests.certificates import Authority
from tests.keys import key_files, token_files

TENANTS = ("acme", "globex")
_LISTEN = "0A"  # state of a socket in /proc/net/tcp


@dataclass(frozen=True)
class Listener:
    """A TCP socket that takes connections."""

    process: str
    address: str
    port: int


class SecuredCell(FaultCell):
    """Coordinator, verifier, drafter and a front end, under mutual TLS and tokens."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.stranger = Authority(self.folder / "stranger")
        self.authority = Authority(self.folder / "authority", TENANTS)
        self.tenants = {name: f"token-of-the-tenant-{name}" for name in TENANTS}
        tokens, own = token_files(self.folder, "operator", "metrics")
        self._operator = tokens["operator"]
        self._keys = key_files(self.folder, self.tenants)
        for role, keys in self._keys.items():
            keys.update(own, **self.authority.settings())
            self._flags[role] = {**self._flags[role], **keys}

    def client(self) -> Client:
        return Client(self.endpoint, token=self._operator, tls=self.authority.tls("operator"))

    def start(self) -> Self:
        super().start()
        self.add_front_end(**self._keys["coordinator"])
        return self

    def listeners(self) -> list[Listener]:
        """Of all processes of the cell. RuntimeError: one of them listens nowhere, as when it has
        ended."""
        found = [one for name, child in self.children.items() for one in listeners(name, child.pid)]
        if silent := self.children.keys() - {one.process for one in found}:
            raise RuntimeError(f"{', '.join(sorted(silent))} listens nowhere")
        return found


def listeners(name: str, pid: int) -> list[Listener]:
    """Of one process."""
    mine = set()
    for file in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            target = str(file.readlink())
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            mine.add(target[len("socket:[") : -1])
    found = list[Listener]()
    if not mine:  # or it has ended
        return found
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == _LISTEN and words[9] in mine:
                host, _, port = words[1].partition(":")
                found.append(Listener(name, _address(host, family), int(port, 16)))
    return found


def _address(text: str, family: socket.AddressFamily) -> str:
    """The kernel writes addresses as words of the machine's own byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))
