"""The state file of the user's running cell, in the state folder: written by `dspark up`, read by
clients and commands.

It holds addresses and process ids, never a secret: tokens are in files of their own beside it.
"""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dspark.errors import ConfigError, DsparkError, InvalidRequest, in_short
from dspark.runtime.addresses import join_endpoint, split_endpoint
from dspark.runtime.identity import DEFAULT_CELL, NoState, read_token, state_dir
from dspark.runtime.tls import Tls
from dspark.whole_file import placed

VERSION = 1
MOST_PID = 2**31 - 1
FILE = "cell.json"
SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")  # of gRPC's own targets


class NoCell(DsparkError):
    """No cell is running here, or its state file cannot be read."""


@dataclass(frozen=True)
class Cell:
    """A cell that `dspark up` started.

    endpoint: host:port of the coordinator. cell_id: marks every process of the cell in its
    environment. token_file: secret of operators and workers. ray_address: GCS host:port. ray_pid:
    leader of the Ray processes this cell started; 0 when the Ray cluster was there before. ray_dir:
    their folder. target, drafter: what is served. frontends: host:port of front ends, separated by
    commas; without any, the coordinator serves clients itself. http: URL of the coordinator's HTTP
    front; empty without one. name: distinguishes it from other cells of its Ray cluster. dashboard:
    URL of Ray's dashboard, if this cell started it. tls_*: PEM files for calls to its processes,
    and the name expected in their certificates; empty: plaintext. leaving: not empty once a command
    ends the cell.
    """

    endpoint: str
    cell_id: str
    token_file: str
    ray_address: str
    ray_pid: int
    ray_dir: str
    target: str
    drafter: str
    frontends: str = ""
    http: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    name: str = DEFAULT_CELL
    dashboard: str = ""
    leaving: str = ""
    version: int = VERSION

    @property
    def for_clients(self) -> str:
        """gRPC target for clients: the coordinator, or the front ends in random order; one of them
        where any address is not a plain IPv4 address, or where certificates name addresses."""
        if not self.frontends:
            return self.endpoint
        fronts = self.frontends.split(",")
        random.shuffle(fronts)
        plain = all(re.fullmatch(r"[0-9.]+:[0-9]+", front) for front in fronts)
        named = self.tls() is None or self.tls_server_name
        return "ipv4:" + ",".join(fronts) if plain and named and len(fronts) > 1 else fronts[0]

    def token(self) -> str | None:
        """The operator's secret; None without one."""
        return read_token(self.token_file)

    def tls(self) -> Tls | None:
        """The TLS settings for calls to the cell; None for plaintext."""
        return Tls.of(self)


def cell_file() -> Path:
    """Path of the state file."""
    return state_dir() / FILE


def find_cell() -> Cell:
    """Reads the running cell from the state file; raises NoCell with a sentence why not, and
    another DsparkError where the file may not be read."""
    path = cell_file()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NoCell(
            f"no cluster is running here (looked for {path}); start one with `dspark up`"
        ) from None
    except OSError as error:  # it may name a cell that runs
        raise DsparkError(f"{path} cannot be read ({in_short(error)})") from None
    except (ValueError, RecursionError) as error:
        raise NoCell(
            f"{path} cannot be read ({in_short(error)}); `dspark down` clears it"
        ) from None
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise NoCell(f"{path} was written by another version of dspark; `dspark down` clears it")
    read: dict[str, Any] = {}
    for field in fields(Cell):
        # files of earlier versions have fewer fields
        read[field.name] = value = content.get(field.name, field.default)
        is_pid = type(value) is int and 0 <= value <= MOST_PID
        if not (is_pid if field.type == "int" else isinstance(value, str)):
            raise NoCell(f"{path} lacks a proper {field.name!r}; `dspark down` clears it")
    return Cell(**read)


def whom_to_call(
    endpoint: str | None, token: str | None, tls: Tls | None
) -> tuple[str, str, str | None, Tls | None]:
    """(endpoint for clients, endpoint for operators, token, TLS); without an `endpoint`, those of
    the running cell. Raises NoCell, and InvalidRequest for an endpoint that is none."""
    if endpoint is not None:
        if not endpoint.startswith(SCHEMES):
            try:
                # gRPC would take another port for a wrong one
                endpoint = join_endpoint(*split_endpoint(endpoint))
            except ConfigError:
                raise InvalidRequest("endpoint", f"{endpoint!r} is not host:port") from None
        return endpoint, endpoint, token, tls
    cell = find_cell()
    return cell.for_clients, cell.endpoint, token or cell.token(), tls or cell.tls()


def write_cell(cell: Cell) -> None:
    """Writes the state file, whole or not at all, readable by its owner only. Raises NoState."""
    path = cell_file()
    try:
        with placed(path, mode=0o600) as file:
            file.write_text(json.dumps(asdict(cell), indent=2), encoding="utf-8")
    except OSError as error:
        raise NoState(path.parent, error) from error


def remove_cell() -> None:
    """Deletes the state file. Raises NoState."""
    path = cell_file()
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NoState(path.parent, error) from error


def is_alive(pid: int) -> bool:
    """Whether a process runs on this machine; one that has ended and was not reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process runs, but this user may not signal it
        return True
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # reaped since the signal, or a system without /proc
        return not Path("/proc/self/stat").exists()
    except OSError:
        return True
    return state not in "ZX"
