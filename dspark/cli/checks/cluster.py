"""Checks of a Ray cluster, of the state folder, and of a running cell, which gets one request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli.checks import Finding, doubtful, fine, wrong
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
    token = Path(environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token"))
    if token.is_file() and token.stat().st_mode & 0o077:
        yield wrong("ray token", f"{token} can be read by others", f"chmod 600 {token}")
    if address is None:
        said = "`dspark up` starts a cluster of its own on loopback, with a token of its own"
        yield fine("ray", f"ray {version}; {said}")
        return
    from deploy.ray_environment import ASK_TIMEOUT_S, is_guarded

    guarded = is_guarded(address)
    if guarded is None:
        said = f"nothing that is a Ray cluster answered at {address} within {ASK_TIMEOUT_S:g} s"
        mend = "is the address the GCS port (6379), and is the cluster up? "
        yield wrong("ray", said, mend + "`ray status --address HOST:PORT`")
    elif not guarded:
        mend = "start every node with RAY_AUTH_MODE=token and the same token; see docs/deploy.md"
        yield doubtful("ray", f"the cluster at {address} does not authenticate callers", mend)
    elif mode == "disabled" or not (token.is_file() or environ.get("RAY_AUTH_TOKEN")):
        said = f"the cluster at {address} asks for a token, and none is set here"
        mend = "put its token into ~/.ray/auth_token (mode 600) or RAY_AUTH_TOKEN, "
        yield wrong("ray", said, mend + "and set RAY_AUTH_MODE=token")
    else:
        said = f"the cluster at {address} asks for a token, and one is set"
        yield fine("ray", f"ray {version}; {said}")


def state() -> Iterator[Finding]:
    """Checks the state folder, and whether it still names a cluster that has ended."""
    from deploy.process_tags import own
    from dspark.client.cell import NoCell, cell_file, find_cell
    from dspark.runtime.identity import NoState, state_dir

    mend = "set DSPARK_HOME to a folder of yours"
    try:
        folder = state_dir()
    except NoState as error:
        yield wrong("state", str(error), mend)
        return
    if not os.access(folder, os.W_OK):
        yield wrong("state", f"{folder} cannot be written", mend)
        return
    if folder.stat().st_mode & 0o077:
        said = f"{folder} holds secrets and is open to others"
        yield doubtful("state", said, f"chmod 700 {folder}")
    if not cell_file().exists():
        yield fine("state", f"{folder}: no cluster is up")
        return
    try:
        cell = find_cell()
    except DsparkError as error:
        yield wrong("state", str(error), "dspark down" if isinstance(error, NoCell) else mend)
        return
    if cell.ray_pid and not own(cell.ray_pid, cell.cell_id):
        yield wrong("state", f"{folder} names a cluster that has ended", "dspark down")
        return
    yield fine("state", f"{folder}: a cluster at {cell.endpoint}")


def cell(connect: Callable[[], Client]) -> Iterator[Finding]:
    """Checks whether every process of a running cell serves. `connect` opens a client of it, or
    raises NoCell if none is up."""
    from dspark.client import NoCell
    from dspark.runtime.identity import NoState

    try:
        with connect() as client:
            reply = client.status()
    except (NoCell, NoState):  # the latter is a finding of `state`
        return
    except DsparkError as error:
        mend = "`dspark logs coordinator` says why; `dspark down` ends the rest"
        yield wrong("cell", str(error), mend)
        return
    for process in reply.processes:
        if process.state != "serving":
            said = f"{process.name} is {process.condition}"
            yield doubtful("cell", said, f"dspark logs {process.name}")
    for lane in reply.lanes:
        if not lane.cost_curve_in_force:
            said = f"{lane.verifier} has no cost curve, so adaptive sequences verify everything"
            yield doubtful("cell", said, "start it with measure_cost on")
    yield fine("cell", f"{len(reply.processes)} processes, {len(reply.lanes)} lanes")
