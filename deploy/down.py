"""Takes a cell down: ends all it started, detached actors too, and removes the state file last."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import grpc

from deploy.fleet import AnotherCell, NobodyListens
from deploy.head import Head, stop_head
from deploy.process_tags import end_all, own
from deploy.ray_environment import joined
from dspark.client import Client, NoCell, find_cell
from dspark.client.cell import Cell, cell_file, remove_cell, write_cell
from dspark.errors import ConfigError, Denied, DsparkError, Unavailable
from dspark.runtime.addresses import split_endpoint
from dspark.runtime.channel import health_of, sync_channel

Say = Callable[[str], None]

ASK_S = 3.0  # a coordinator that takes longer to send its status counts as busy
RAY_S = 60.0  # for Ray, besides
GRACE_S = 30.0  # for running streams, unless the user says otherwise


def take_down(say: Say, grace_s: float = GRACE_S) -> None:
    """Ends the cell of the state folder: new requests are refused, running streams may finish
    within the grace. Without a cell there is nothing to do. Raises DsparkError when processes do
    not end."""
    try:
        cell = find_cell()
    except NoCell as error:
        if not cell_file().exists():
            say("nothing is up")
            return
        _end_unreadable()
        remove_cell()
        say(f"cleared an unusable state file: {error}")
        return
    if cell.ray_pid:
        with contextlib.suppress(DsparkError):  # a full disk must not keep the cell
            # for a `dspark up` that still starts it, and for `dspark status`, should this break off
            write_cell(replace(cell, leaving="yes"))
        if grace_s > 0 and own(cell.ray_pid, cell.cell_id) and (running := under_way(cell)):
            say(f"draining: {running} have up to {grace_s:g} s to finish")
            _beside(grace_s)
        left = stop_head(
            Head(
                cell.ray_address, own(cell.ray_pid, cell.cell_id), Path(cell.ray_dir), cell.cell_id
            )
        )
        if left:
            raise DsparkError(
                f"processes {left} would not end; end them and run `dspark down` again"
            )
    elif not close_remote(cell, say, grace_s):
        remove_cell()
        say("cleared the state file")
        return
    remove_cell()
    say(f"down: {cell.endpoint}")


def take_down_wholly(say: Say, grace_s: float = GRACE_S) -> None:
    """Takes the cell down, however often Ctrl-C says so again: running streams break off then."""
    for within_s in chain([grace_s], repeat(0.0)):
        with contextlib.suppress(KeyboardInterrupt):
            return take_down(say, within_s)


def _beside(grace_s: float) -> None:
    """Drains the cell from another process: a Ray that hangs would keep this one, and ends who has
    joined it. What does not listen is ended all the same."""
    drain = f"from deploy.down import drain; drain({grace_s!r})"
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-P", "-c", drain], timeout=2 * grace_s + RAY_S)


def drain(grace_s: float) -> None:
    """Drains the cell of the state folder; the whole life of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command kills it then
    with contextlib.suppress(DsparkError):
        close_remote(find_cell(), lambda _: None, grace_s)


def _end_unreadable() -> None:
    """Ends the processes that a damaged state file, or one of another version, still names."""
    try:
        content = json.loads(cell_file().read_text(encoding="utf-8"))
        cell_id, leader = str(content["cell_id"]), int(content["ray_pid"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    end_all(cell_id, own(leader, cell_id))


def operating(cell: Cell) -> Client:
    """A client of the cell's coordinator, with the operator's token."""
    return Client(cell.endpoint, token=cell.token(), tls=cell.tls())


def under_way(cell: Cell) -> str:
    """Running and waiting requests, in words; empty if there are none or nothing listens."""
    try:
        with operating(cell) as client:
            reply = client.status(timeout=ASK_S)
    except Unavailable:
        return ""
    except DsparkError:  # it listens, but is too busy or refuses to answer
        return "requests"
    count = reply.queued + sum(lane.running + lane.waiting for lane in reply.lanes)
    return f"{count} requests" if count else ""


def answers(cell: Cell) -> bool:
    """Whether the coordinator of the cell answers a health check."""
    try:
        with sync_channel(cell.endpoint, tls=cell.tls()) as channel:
            health_of(channel, "")
    except (grpc.RpcError, ConfigError, OSError):  # files of certificates may be changing
        return False
    return True


def listens(cell: Cell) -> bool:
    """Whether the cell's coordinator listens at its port; one that has no time to answer, or whose
    certificates are changing, counts, too. A process that refuses the operator's token, or does not
    speak gRPC, has got the port since."""
    try:
        socket.create_connection(split_endpoint(cell.endpoint), ASK_S).close()
        with operating(cell) as client:
            client.status(timeout=ASK_S)
    except (Denied, OSError):
        return False
    except Unavailable as error:
        # gRPC's words for a silent peer, which others do not get: they hang up, or speak first
        return cell.tls() is not None or "timed out" in str(error)
    except DsparkError:
        return True
    return True


def close_remote(cell: Cell, say: Say, grace_s: float) -> bool:
    """Drains and removes the cell's actors; a Ray cluster that others run is left as it is. False
    where another cell has the name by now. Raises DsparkError where Ray's head is gone and the cell
    is not."""
    try:
        with joined(cell) as cluster:
            cluster.close_cell(cell, grace_s)
    # any other failure is the user's to mend, and the state file stays
    except NobodyListens as error:
        if listens(cell):  # processes outlive their head for a minute, or until it is back
            raise DsparkError(
                f"{error}; the cell still listens at {cell.endpoint}: `dspark down` again when "
                "Ray's head is back, or when the nodes have ended without it"
            ) from error
        say(f"{error}; with the cluster its actors are gone too")
    except AnotherCell as error:
        say(str(error))
        return False
    return True
