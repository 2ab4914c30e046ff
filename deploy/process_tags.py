"""Finding and ending every process of a cell, and only those.

Each cell has an id that all its processes inherit in their environment, so a search by it misses
nobody, whatever process group a child was put into, and hits nobody else: no command that stops
every Ray process of a machine is used.
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
    """An id no other cell has."""
    return secrets.token_hex(8)


def has_marks() -> bool:
    """Whether this system lets the marks of processes be read."""
    return _PROC.is_dir()


def marked(cell_id: str) -> list[int]:
    """Process ids that carry the mark, this process left out. Empty where the system has no
    /proc."""
    mark = f"{VARIABLE}={cell_id}".encode()
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:  # ended meanwhile, or another user's
            continue
        if mark in environment.split(b"\0") and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return sorted(found)


def end_all(cell_id: str, leader: int, *, grace_s: float = 10.0) -> list[int]:
    """Ends the leader's process group, then whoever carries the mark. Returns those that would not
    go."""
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
    """Waits for the leader and whoever carries the mark; returns those still there at the end.

    A process gives up its environment some moments before it has ended and may hold a port until
    then, so those that were `seen` with the mark are waited for while they leave. One that took off
    its mark is not of the cell any more.
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
    """Whether a process without a mark is waited for: the leader, or one that has given up its
    memory already."""
    try:
        return pid == leader or not (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _signal_group(leader: int, number: signal.Signals) -> None:
    # A recycled id must not be hit: the leader of a session leads a group of its own id.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if leader and os.getpgid(leader) == leader:
            os.killpg(leader, number)
