"""A cell without Ray: `dspark serve` as child processes with static endpoints.

For one machine, for tests and for measurements. Nothing is supervised: what is killed stays dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from deploy.awaiting import LATE, missing, until_nothing
from deploy.config import ClusterConfig
from deploy.head import free_ports
from deploy.topology import ProcessRole, threads_of
from dspark.client import Client
from dspark.errors import Unavailable
from dspark.runtime.identity import read_token

START_TIMEOUT_S: float = ClusterConfig.start_timeout_s
STOP_GRACE_S = 10.0

Flags = Mapping[str, object]
ROLES = ("coordinator", "verify", "draft")


@dataclass
class Child:
    """One running `dspark serve`."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes]
    log: Path
    endpoint: str
    incarnation: int
    http: str = ""  # URL of its HTTP front

    @property
    def pid(self) -> int:
        return self.process.pid


class ProcessCell:
    """A context manager that runs a coordinator, verifiers and drafters as child processes.

    flags: settings of each role, as in its configuration, e.g. `draft={"q_entries": 16}`. programs:
    by role, module and arguments to run in place of the command line's.
    """

    led = True  # whether it has a coordinator; else workers alone

    def __init__(
        self,
        target: str | Path,
        drafter: str | Path,
        *,
        verifiers: int = 1,
        drafters: int = 1,
        programs: Mapping[str, Sequence[str]] | None = None,
        folder: Path | None = None,
        **flags: Flags | None,
    ) -> None:
        self._models = {"target": str(target), "drafter": str(drafter)}
        self._counts = {"verify": verifiers, "draft": drafters}
        if unknown := flags.keys() - ROLES:
            raise ValueError(f"{min(unknown)} is none of the roles {', '.join(ROLES)}")
        self._flags: dict[str, Flags] = {role: flags.get(role) or {} for role in ROLES}
        self._programs = programs or {}
        self._temporary = None if folder else tempfile.TemporaryDirectory(prefix="dspark-cell-")
        self.folder = folder or Path(self._temporary.name if self._temporary else "")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.children: dict[str, Child] = {}

    @property
    def endpoint(self) -> str:
        """Endpoint of the coordinator."""
        return self.children["coordinator/0"].endpoint

    @property
    def http(self) -> str:
        """URL of the coordinator's HTTP front; empty without one."""
        return self.children["coordinator/0"].http

    def endpoints(self, role: str) -> list[str]:
        """Endpoints of all processes of a role."""
        return [
            child.endpoint for name, child in self.children.items() if name.startswith(f"{role}/")
        ]

    def client(self) -> Client:
        """A client of this cell, with the workers' token if it has one."""
        path = self._flags["coordinator"].get("token_file")
        return Client(self.endpoint, token=read_token(str(path)) if path else None)

    def start(self) -> Self:
        """Starts everything and waits until the coordinator serves with every worker connected."""
        try:
            begun = []
            for role, count in self._counts.items():
                said = {key: self._said(role, key) for key in ("engine", "threads", "cpus")}
                threads = {"threads": threads_of(ProcessRole(role), said, count)}
                for index in range(count):
                    flags = {**self._models, **self._flags[role], **threads}
                    begun.append(self._begin(role, index, flags))
            for child in begun:
                self._await_ready(child)
            if self.led:
                workers = {role: ",".join(self.endpoints(role)) for role in self._counts}
                given = {"target": self._models["target"], **workers, **self._flags["coordinator"]}
                self._await_ready(self._begin("coordinator", 0, given))
                names = {child.name for child in begun}
                deadline = time.monotonic() + START_TIMEOUT_S
                with self.client() as client:
                    until_nothing(lambda: missing(client.status(), names), LATE, deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def add_front_end(self, **flags: object) -> Child:
        """Starts one more process, a front end of the coordinator."""
        before = {"target": self._models["target"], "coordinator": self.endpoint}
        child = self._begin("frontend", len(self.endpoints("frontend")), {**before, **flags})
        self._await_ready(child)
        return child

    def stop(self) -> None:
        """Ends everything, the coordinator first."""
        order = sorted(
            self.children.values(), key=lambda child: not child.name.startswith("coordinator/")
        )
        for child in order:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_GRACE_S
        for child in order:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait(STOP_GRACE_S)
            if child.process.stdout:
                child.process.stdout.close()
        self.children.clear()
        if self._temporary:
            self._temporary.cleanup()

    def _begin(self, role: str, index: int, flags: Flags) -> Child:
        words = [_option(key, value) for key, value in flags.items() if value not in (None, "")]
        name = f"{role}/{index}"
        program = self._programs.get(role, ("dspark.cli.main",))
        start = [sys.executable, "-m", *program, "serve", role, f"--name={name}", "--ready-json"]
        start.append(f"--parent-pid={os.getpid()}")
        return self._spawn(name, [*start, *self._place(name), *words])

    def _said(self, role: str, key: str) -> object:
        """A setting that is given for a role, in its flags or in the environment."""
        return self._flags.get(role, {}).get(key) or os.environ.get(
            f"DSPARK_{role.upper()}__{key.upper()}"
        )

    def _place(self, name: str) -> list[str]:
        """Flags for where a process and its successors listen."""
        return [f"--bind=127.0.0.1:{free_ports(1)[0]}"]

    def _spawn(self, name: str, command: Sequence[str]) -> Child:
        log = self.folder / f"{name.replace('/', '-')}.log"
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=environment
            )
        child = Child(name, command, process, log, "", 0)
        self.children[name] = child
        return child

    def _await_ready(self, child: Child) -> None:
        assert child.process.stdout is not None
        line = _read_line(child.process.stdout, START_TIMEOUT_S)
        if not line:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(1.0)  # its pipe closes a moment before it has ended
            late = f" within {START_TIMEOUT_S:g} s" if child.process.returncode is None else ""
            said = child.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise Unavailable(
                f"{child.name} did not start{late}: {said[-1] if said else 'it said nothing'}"
            )
        ready = json.loads(line)
        child.endpoint, child.incarnation = ready["endpoint"], int(ready["incarnation"])
        child.http = str(ready.get("http", ""))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


def _option(key: str, value: object) -> str:
    """A setting as a flag of `dspark serve`."""
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def _read_line(pipe: IO[bytes], timeout_s: float) -> bytes:
    """One line; empty if the pipe closes or the time runs out before its end."""
    deadline = time.monotonic() + timeout_s
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return b""
        byte = os.read(pipe.fileno(), 1)
        if not byte:
            return b""
        line += byte
    return line
