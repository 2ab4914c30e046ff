"""Whether a measurement on processors was disturbed: processes of one state folder measure one
after the other, and what others take of the machine meanwhile is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark.runtime.identity import NoState, state_dir
from dspark.whole_file import locked

WAIT_S = 20.0  # longest wait for a process that measures
POLL_S = 0.05
STAT = Path("/proc/stat")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Within a `with` block no other process of this state folder is in one, unless it takes longer
    than WAIT_S, or the folder cannot be written."""
    try:
        lock = (state_dir() / "measuring.lock").open("ab")
    except (OSError, NoState):
        yield
        return
    with lock:
        until = time.monotonic() + WAIT_S
        while not locked(lock.fileno()) and time.monotonic() < until:
            time.sleep(POLL_S)
        yield


class OthersWork:
    """What others take of the machine's processors from its making on."""

    def __init__(self) -> None:
        self._began, self._before, self._own = time.monotonic(), _worked_s(), time.process_time()

    def processors(self) -> float:
        """Mean number of processors that others kept busy; 0 where the platform does not tell."""
        if self._before is None or (worked := _worked_s()) is None:
            return 0.0
        seconds = max(time.monotonic() - self._began, 1e-3)
        return (worked - self._before - (time.process_time() - self._own)) / seconds


def _worked_s() -> float | None:
    """Seconds that the machine's processors worked, all together; None where it is not told."""
    try:
        numbers = STAT.read_bytes().split(b"\n", 1)[0].split()[1:9]
        user, nice, system, _, _, *more = map(int, numbers)
    except (OSError, ValueError):
        return None
    return (user + nice + system + sum(more)) / os.sysconf("SC_CLK_TCK")
