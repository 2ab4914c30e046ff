"""A local Ray cluster as a child process: own session, own folder, own token, loopback only.

Does not import ray: `ray start` is run as a program, so that a cluster can be ended without loading
anything.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from deploy.process_tags import end_all
from deploy.ray_environment import environment, is_guarded
from dspark.errors import Unavailable
from dspark.runtime.identity import write_token

PORT_TIMEOUT_S = 100.0  # Ray waits 60 s for its server (`environment`) and 30 s for its node
STARTED = "Ray runtime started."  # Ray says so once its node has joined
STARTS = 3  # a port can be taken between our check and Ray's start
OBJECT_STORE_BYTES = 80_000_000  # nothing of ours travels through it

_PORT_OPTIONS = (
    "port",
    "node-manager-port",
    "object-manager-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
    "runtime-env-agent-port",
    "ray-client-server-port",
)
_PORTS = range(20_000, 30_000)  # above Ray's workers, below what kernels choose from
_first = secrets.randbelow(len(_PORTS))
# in turn, so that no port is given out twice
_ports = itertools.cycle((*_PORTS[_first:], *_PORTS[:_first]))
PREFIX = "dspark-ray-"  # of folders
RAY = "ray"  # in them, Ray's own
_PORT_VARIABLES = ("AUTOSCALER_METRIC_PORT", "DASHBOARD_METRIC_PORT")


@dataclass(frozen=True)
class Head:
    """A running local cluster. pid: its session's leader. folder: sessions and logs, removed with
    it. dashboard: URL of Ray's dashboard; empty without one."""

    address: str
    pid: int
    folder: Path
    cell_id: str
    dashboard: str = ""


class _NotOurs(Unavailable):
    """A start failed in a way that other ports may mend."""


def start_head(
    token_file: Path,
    cell_id: str,
    environ: MutableMapping[str, str],
    noted: Callable[[Head], None],
    *,
    dashboard: bool = False,
) -> Head:
    """Starts the cluster and waits until it demands a token. Sets `environ` (this process's) up for
    drivers.

    `noted` is called with the cluster before any wait, so that another process can always end it. A
    start that ends by itself, or whose port another cluster answers, is tried again with other
    ports.
    """
    if not token_file.exists():
        write_token(token_file)
    for _ in range(STARTS - 1):
        with contextlib.suppress(_NotOurs):
            return _start(token_file, cell_id, environ, noted, dashboard)
    return _start(token_file, cell_id, environ, noted, dashboard)


def _start(
    token_file: Path,
    cell_id: str,
    environ: MutableMapping[str, str],
    noted: Callable[[Head], None],
    dashboard: bool,
) -> Head:
    # Ray lets everybody write into its folder, so it gets one inside of this, which is its owner's
    # alone. Its sockets lie there and their paths are limited to about a hundred bytes: no deep
    # folders.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp" if os.path.isdir("/tmp") else None))
    ports = free_ports(len(_PORT_OPTIONS) + len(_PORT_VARIABLES) + 1)
    environ.update(environment(token_file, cell_id))
    child_environ = {**environ, **{name: str(ports.pop()) for name in _PORT_VARIABLES}}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += [
        "--node-ip-address=127.0.0.1",
        "--disable-usage-stats",
        f"--include-dashboard={str(dashboard).lower()}",
    ]
    shown = ports.pop()
    if dashboard:
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={shown}"]
    command += [
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={folder / RAY}",
        "--log-color=false",
    ]
    command += [f"--{option}={port}" for option, port in zip(_PORT_OPTIONS, ports, strict=True)]
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=child_environ,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{shown}" if dashboard else ""
    head = Head(f"127.0.0.1:{ports[0]}", process.pid, folder, cell_id, url)
    try:
        noted(head)
        _await_ours(process, ports[0], folder / "head.log")
    except BaseException:
        stop_head(head)
        raise
    finally:
        process.returncode = 0  # the cluster outlives this object and is not waited for through it
    return head


def stop_head(head: Head) -> list[int]:
    """Ends all processes of the cluster and removes its folder; returns ids of those left."""
    left = end_all(head.cell_id, head.pid)
    # a damaged state file must not name a folder to remove
    ours = head.folder.name.startswith(PREFIX)
    for _ in range(20 if ours and not left else 0):
        shutil.rmtree(head.folder, ignore_errors=True)
        if not head.folder.exists():
            break
        time.sleep(0.1)  # a driver that is just leaving may still have written there
    return left


def free_ports(count: int) -> list[int]:
    """Different ports on which nothing listens now.

    A port that the kernel chooses (`bind` to 0) can become the local end of any connection before
    its owner listens there, or while the owner is replaced. These lie outside the range that it
    chooses from. Raises Unavailable when there are not enough.
    """
    found: list[int] = []
    for port in itertools.islice(_ports, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise Unavailable(
        f"{count} free ports wanted between {_PORTS.start} and {_PORTS.stop}, {len(found)} there"
    )


def _await_ours(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Waits until the started cluster demands a token and has its node; a busy machine takes time.

    Ray's server answers before its node is there, and ends where that takes more than half a
    minute. Raises _NotOurs if it ended, or if a Ray cluster that demands no token answers: that is
    another one.
    """
    deadline = time.monotonic() + PORT_TIMEOUT_S
    guarded = None
    while True:
        ended, said = process.poll(), log.read_text(encoding="utf-8", errors="replace").strip()
        if ended is not None:
            last = said.splitlines()[-1] if said else f"exit code {ended}"
            raise _NotOurs(f"Ray did not start: {last}")
        try:
            if not guarded:
                socket.create_connection(("127.0.0.1", port), 0.5).close()
                guarded = is_guarded(f"127.0.0.1:{port}")
            missing = "start its node" if guarded else "say whether it authenticates callers"
        except OSError:
            missing = "listen"
        if guarded and STARTED in said:
            return
        if guarded is False:
            raise _NotOurs(
                f"port {port} is answered by another Ray cluster than the one that was started"
            )
        if time.monotonic() > deadline:
            raise Unavailable(f"Ray did not {missing} on port {port} within {PORT_TIMEOUT_S:.0f} s")
        time.sleep(0.1)
