"""A cell under lock and key: certificates of an authority of its own, a token per role, and every
kind of listener.

with SecuredCell() as cell:
    cell.stranger           # certificates of another authority
    cell.client()           # an operator
    cell.listeners()        # every socket its processes listen on
"""

import contextlib
from dataclasses import dataclass
from typing import Any, Self

import psutil

from dspark.client import Client
from tests.certificates import Authority
from tests.faults.processes import FaultCell
from tests.keys import key_files, token_files

TENANTS = ("acme", "globex")


@dataclass(frozen=True)
class Listener:
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
        """Of all processes. RuntimeError: one listens nowhere, as when it has ended."""
        found = [one for name, child in self.children.items() for one in listeners(name, child.pid)]
        if silent := self.children.keys() - {one.process for one in found}:
            raise RuntimeError(f"{', '.join(sorted(silent))} listens nowhere")
        return found


def listeners(name: str, pid: int) -> list[Listener]:
    """Of one process; none where it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        sockets = psutil.Process(pid).net_connections("tcp")
        return [
            Listener(name, *each.laddr) for each in sockets if each.status == psutil.CONN_LISTEN
        ]
    return []
