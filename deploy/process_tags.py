"""Finds and ends every process of a cell, and only those.

All processes of a cell inherit its id in their environment. A search by it finds each of them, in
any process group, and none of another cell; no command that stops every Ray process of a machine is
used.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path

from dspark.client.cell import is_alive

VARIABLE = "DSPARK_CELL_ID"
_PROC = Path("/proc")


def new_cell_id() -> str:
    """A random id, which no other cell has."""
    return secrets.token_hex(8)


def has_marks() -> bool:
    """Whether environments of processes can be read on this system."""
    return _PROC.is_dir()


def marked(cell_id: str) -> list[int]:
    """Ids of processes with the cell's id in their environment, this process left out. Empty where
    the system has no /proc."""
    pids = sorted(int(each.name) for each in _PROC.glob("[0-9]*") if each.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and _is_marked(pid, cell_id)]


def _is_marked(pid: int, cell_id: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return False
    return f"{VARIABLE}={cell_id}".encode() in environment.split(b"\0") and is_alive(pid)


def own(leader: int, cell_id: str) -> int:
    """The leader's process id if it is still the cell's, else 0: the system reuses ids. Without
    marks, whoever runs under it counts as the cell's."""
    its = _is_marked(leader, cell_id) if has_marks() else is_alive(leader)
    return leader if its else 0


def end_all(cell_id: str, leader: int, *, grace_s: float = 10.0) -> list[int]:
    """Sends SIGTERM to the leader's process group and, after the grace, SIGKILL to it and to every
    marked process. Returns ids of those that did not end."""
    seen = set(marked(cell_id))
    _signal_group(leader, signal.SIGTERM)
    if not _wait_gone(cell_id, leader, seen, grace_s):
        return []
    _signal_group(leader, signal.SIGKILL)
    for pid in marked(cell_id):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return _wait_gone(cell_id, leader, seen, 10.0)


def _wait_gone(cell_id: str, leader: int, seen: set[int], timeout_s: float) -> list[int]:
    """Waits until the leader and all marked processes have ended; returns those still there.

    A process loses its environment some moments before it ends and may hold a port until then, so
    those that were `seen` with the mark are waited for while they exit. One that removed its mark
    is not of the cell any more.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if leader:
            with contextlib.suppress(ChildProcessError):
                # not a child of this process: its own parent collects it
                os.waitpid(leader, os.WNOHANG)
        present = set(marked(cell_id))
        seen |= present
        left = sorted(
            pid
            for pid in seen | {leader} - {0}
            if is_alive(pid) and (pid in present or _ends(pid, leader))
        )
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(0.1)


def _ends(pid: int, leader: int) -> bool:
    """Whether an unmarked process is waited for: the leader, or one that has released its
    memory."""
    try:
        return pid == leader or not (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _signal_group(leader: int, number: signal.Signals) -> None:
    # A recycled id must not be hit: the leader of a session leads a group of its own id.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if leader and os.getpgid(leader) == leader:
            os.killpg(leader, number)
