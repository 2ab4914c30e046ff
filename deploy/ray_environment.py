"""Access to Ray: the environment it reads once, at import, and whether a cluster demands a token.

Only `driving` imports ray. `dspark ray -- WORDS` does not: it runs Ray's own commands against the
cell's cluster.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from deploy.fleet import NobodyListens, NothingStarted
from deploy.process_tags import VARIABLE
from dspark.client import find_cell
from dspark.client.cell import Cell
from dspark.errors import DsparkError, WrongCommand
from dspark.runtime.addresses import is_loopback, split_endpoint
from dspark.runtime.channel import sync_channel
from dspark.runtime.identity import state_dir

ASK_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0
_METHOD = "/ray.rpc.NodeInfoGcsService/CheckAlive"  # reads only, and takes an empty request
# These commands end more than this cell's processes.
REFUSED = ("stop", "symmetric-run", "down", "kill-random-node")
ASK_DASHBOARD = ("list", "get", "summary", "logs", "job")


def environment(token_file: Path, cell_id: str) -> dict[str, str]:
    """Environment variables that the Ray processes and every driver of this cluster need."""
    return {
        VARIABLE: cell_id,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        # 0: this node stays alone; else Ray replaces 127.0.0.1 by the machine's outer address.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else a stop waits half a minute in vain
        # a worker that reserves no GPU may still share one
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray would run them at 15, as batch jobs; these serve requests
        "RAY_worker_niceness": "0",
        # A loaded machine takes longer than the 15 s Ray would wait for its own server.
        "RAY_gcs_server_port_wait_time_s": "60",
    }


@contextmanager
def joined(cell: Cell) -> Iterator[Any]:
    """Context: this process is a driver of the cell's Ray cluster. Yields `deploy.cluster`; raises
    NothingStarted if it cannot join."""
    if cell.ray_pid:
        os.environ.update(environment(state_dir() / "ray_token", cell.cell_id))
    with driving(cell.ray_address, local=bool(cell.ray_pid)) as cluster:
        yield cluster


@contextmanager
def driving(address: str, *, local: bool) -> Iterator[Any]:
    """Context: this process is a driver of the Ray cluster at `address`. Yields `deploy.cluster`.

    Sets Ray's authentication mode: token where the user has one, else disabled. Changes to the
    state folder, for Ray puts a driver's working folder first on its workers' import path, where
    the user's files could hide our packages. Paths have been made absolute by then.
    """
    _check_reachable(address)
    say_auth(os.environ)
    os.chdir(state_dir())
    from deploy import cluster

    cluster.connect(address, local=local)
    try:
        yield cluster
    finally:
        cluster.disconnect()


def _check_reachable(address: str) -> None:
    """Raises NobodyListens or NothingStarted for a dead address, which Ray tries for minutes, and
    for one that is silent, which it tries for ever and deaf to Ctrl-C."""
    host, port = split_endpoint(address, "address")
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError as error:
        raise NobodyListens(f"there is no Ray cluster at {address}: {error}") from error
    except OSError as error:
        raise NothingStarted(f"cannot join the Ray cluster at {address}: {error}") from error
    # under Ray's own TLS it cannot be asked
    if os.environ.get("RAY_USE_TLS", "0") == "0" and is_guarded(address) is None:
        raise NothingStarted(
            f"the Ray cluster at {address} does not answer within {ASK_TIMEOUT_S:g} s"
        )


def say_auth(environ: MutableMapping[str, str]) -> None:
    """Sets Ray's variables for authentication and usage reports, where the user has not."""
    environ.setdefault("RAY_AUTH_MODE", "token" if _has_token(environ) else "disabled")
    environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def job_address(environ: Mapping[str, str]) -> str | None:
    """GCS address of the cluster that RAY_ADDRESS names, as it does in a Ray job; None for anything
    else."""
    named = environ.get("RAY_ADDRESS", "")
    host, _, port = named.rpartition(":")
    return named if host and port.isdigit() and "/" not in named else None


def _has_token(environ: MutableMapping[str, str]) -> bool:
    named = environ.get("RAY_AUTH_TOKEN") or environ.get("RAY_AUTH_TOKEN_PATH")
    # a user without a home has none
    return bool(named) or os.path.exists(os.path.expanduser("~/.ray/auth_token"))


def is_guarded(address: str) -> bool | None:
    """Whether the GCS at `address` refuses callers without a token, who could run code there; None:
    its answer shows neither."""
    with sync_channel(address) as channel:
        ask = channel.unary_unary(_METHOD)
        try:
            ask(b"", timeout=ASK_TIMEOUT_S, wait_for_ready=True)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
                return True
            return None
    return False


def check_guarded(address: str, *, insecure: bool) -> None:
    """Raises NothingStarted for a cluster that demands no token and is reachable from elsewhere."""
    if insecure or (guarded := is_guarded(address)):
        return
    host, _ = split_endpoint(address, "address")
    if is_loopback(host):
        return
    if guarded is None:
        raise NothingStarted(
            f"the Ray cluster at {address} did not say within {ASK_TIMEOUT_S:g} s whether it asks "
            "for a token; try again, or say --insecure"
        )
    raise NothingStarted(
        f"the Ray cluster at {address} does not ask for a token: anybody who reaches it can run "
        "code there. Start it with RAY_AUTH_MODE=token, or say --insecure"
    )


def run(words: Sequence[str]) -> int:
    """`dspark ray`: runs one of Ray's commands and returns its exit code."""
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise WrongCommand("ray: say which of Ray's commands, as in `dspark ray -- status`")
    if words[0] in REFUSED:
        raise WrongCommand(
            f"ray: `ray {words[0]}` ends what is not this cell's; `dspark down` ends the cell"
        )
    cell = find_cell()
    if words[0] in ASK_DASHBOARD and cell.ray_pid and not cell.dashboard:
        raise DsparkError(
            f"`ray {words[0]}` asks Ray's dashboard, which `dspark up --dashboard` would have "
            "started"
        )
    command = [sys.executable, "-m", "ray.scripts.scripts", *words]
    return subprocess.run(command, env=variables(cell, os.environ), check=False).returncode


def variables(cell: Cell, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of Ray's programs: the address of the cluster and the token for it."""
    mine = dict(environ)
    if cell.ray_pid:
        mine |= environment(state_dir() / "ray_token", cell.cell_id)
    say_auth(mine)
    mine["RAY_ADDRESS"] = cell.ray_address
    if cell.dashboard:
        mine["RAY_API_SERVER_ADDRESS"] = cell.dashboard
    return mine
