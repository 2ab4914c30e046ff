"""One device: a pass at a time, urgent ones first, and a count of the seconds it was at work."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Work = Callable[[], float]  # begins a pass: says how many seconds it takes
Done = Callable[[float], None]  # gets those seconds when they are over


class Device:
    """What starts is finished; what waits is taken in order of arrival, urgent passes before ordinary ones."""

    def __init__(self) -> None:
        self.busy_s = 0.0
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
        for queue in self._waiting:
            if queue:
                work, done = queue.popleft()
                seconds = work()
                self._running = True
                self.busy_s += seconds
                self._free_at = self._loop.time() + seconds
                self._loop.call_later(seconds, self._over, done, seconds)
                return
        self._running = False

    def _over(self, done: Done, seconds: float) -> None:
        done(seconds)
        self._next()
