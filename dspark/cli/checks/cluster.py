"""Checks of a Ray cluster, of the state folder, and of a running cell, which gets one request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli.checks.finding import Finding, Level
from dspark.errors import DsparkError

if TYPE_CHECKING:
    from dspark.client import Client


def ray_access(address: str | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Checks whether the Ray cluster authenticates callers, and whether our token is private."""
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return  # `versions` reports it
    mode = environ.get("RAY_AUTH_MODE")
    token = Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if token.is_file() and token.stat().st_mode & 0o077:
        yield Finding(
            "ray token", Level.FAIL, f"{token} can be read by others", f"chmod 600 {token}"
        )
    if address is None:
        said = (
            f"ray {version}; `dspark up` starts a cluster of its own on loopback, with a token "
            "of its own"
        )
        yield Finding("ray", Level.OK, said)
        return
    from deploy.ray_environment import ASK_TIMEOUT_S, is_guarded

    guarded = is_guarded(address)
    if guarded is None:
        mend = (
            "is the address the GCS port (6379), and is the cluster up? `ray status --address "
            "HOST:PORT`"
        )
        yield Finding(
            "ray",
            Level.FAIL,
            f"nothing that is a Ray cluster answered at {address} within {ASK_TIMEOUT_S:g} s",
            mend,
        )
    elif not guarded:
        mend = "start every node with RAY_AUTH_MODE=token and the same token; see docs/deploy.md"
        yield Finding(
            "ray", Level.WARN, f"the cluster at {address} does not authenticate callers", mend
        )
    elif mode == "disabled" or not (token.is_file() or environ.get("RAY_AUTH_TOKEN")):
        mend = (
            "put its token into ~/.ray/auth_token (mode 600) or RAY_AUTH_TOKEN, and set "
            "RAY_AUTH_MODE=token"
        )
        yield Finding(
            "ray",
            Level.FAIL,
            f"the cluster at {address} asks for a token, and none is set here",
            mend,
        )
    else:
        yield Finding(
            "ray",
            Level.OK,
            f"ray {version}; the cluster at {address} asks for a token, and one is set",
        )


def state() -> Iterator[Finding]:
    """Checks the state folder, and whether it still names a cluster that has ended."""
    from dspark.client.cell import cell_file, find_cell, is_alive
    from dspark.runtime.identity import state_dir

    folder = state_dir()
    if not os.access(folder, os.W_OK):
        yield Finding(
            "state",
            Level.FAIL,
            f"{folder} cannot be written",
            "set DSPARK_HOME to a folder of yours",
        )
        return
    if folder.stat().st_mode & 0o077:
        yield Finding(
            "state",
            Level.WARN,
            f"{folder} holds secrets and is open to others",
            f"chmod 700 {folder}",
        )
    if not cell_file().exists():
        yield Finding("state", Level.OK, f"{folder}: no cluster is up")
        return
    try:
        cell = find_cell()
    except DsparkError as error:
        yield Finding("state", Level.FAIL, str(error), "dspark down")
        return
    if cell.ray_pid and not is_alive(cell.ray_pid):
        yield Finding(
            "state", Level.FAIL, f"{folder} names a cluster that has ended", "dspark down"
        )
        return
    yield Finding("state", Level.OK, f"{folder}: a cluster at {cell.endpoint}")


def cell(connect: Callable[[], Client]) -> Iterator[Finding]:
    """Checks whether every process of a running cell serves. `connect` opens a client of it, or
    raises NoCell if none is up."""
    from dspark.client import NoCell

    try:
        with connect() as client:
            reply = client.status()
    except NoCell:
        return
    except DsparkError as error:
        yield Finding(
            "cell",
            Level.FAIL,
            str(error),
            "`dspark logs coordinator` says why; `dspark down` ends the rest",
        )
        return
    for process in reply.processes:
        if process.state != "serving":
            said = f"{process.name} is {process.condition}"
            yield Finding("cell", Level.WARN, said, f"dspark logs {process.name}")
    for lane in reply.lanes:
        if not lane.cost_curve_in_force:
            said = f"{lane.verifier} has no cost curve, so adaptive sequences verify everything"
            yield Finding("cell", Level.WARN, said, "start it with measure_cost on")
    yield Finding("cell", Level.OK, f"{len(reply.processes)} processes, {len(reply.lanes)} lanes")
