"""What is at work for some seconds at a time: a device, or the processor time of one process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Work = Callable[[], float]  # begins a pass: says how many seconds it takes
Done = Callable[[float], None]  # gets those seconds when they are over


class Cores:
    """Cores of a machine that several processes share: as many work at a time, the others wait in order."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, then: Callable[[], None]) -> None:
        """`then` is called with a core in hand, now or later."""
        if self._free:
            self._free -= 1
            then()
        else:
            self._waiting.append(then)

    def give(self) -> None:
        if self._waiting:
            self._waiting.popleft()()
        else:
            self._free += 1


class Device:
    """A pass at a time. What starts is finished; what waits is taken in order of arrival, urgent passes before ordinary
    ones. With `cores` it is a process that needs one of them for every pass. Counts the seconds it was at work.
    """

    def __init__(self, cores: Cores | None = None) -> None:
        self.busy_s = 0.0
        self._cores = cores
        self._loop = asyncio.get_running_loop()
        self._waiting: tuple[deque[tuple[Work, Done]], deque[tuple[Work, Done]]] = (deque(), deque())
        self._free_at = 0.0
        self._running = False

    @property
    def busy_until_now_s(self) -> float:
        """Seconds at work so far, without what is left of a running pass."""
        return self.busy_s - max(self._free_at - self._loop.time(), 0.0)

    def submit(self, work: Work, done: Done, *, urgent: bool) -> None:
        """`work` is called when the device turns to it."""
        self._waiting[0 if urgent else 1].append((work, done))
        if not self._running:
            self._next()

    def _next(self) -> None:
        self._running = any(self._waiting)
        if self._running and self._cores is not None:
            self._cores.take(self._begin)
        elif self._running:
            self._begin()

    def _begin(self) -> None:
        work, done = next(queue for queue in self._waiting if queue).popleft()
        seconds = work()
        self.busy_s += seconds
        self._free_at = self._loop.time() + seconds
        self._loop.call_later(seconds, self._over, done, seconds)

    def _over(self, done: Done, seconds: float) -> None:
        if self._cores is not None:
            self._cores.give()
        done(seconds)
        self._next()
