"""An asyncio event loop with simulated time: when no callback is ready it jumps to the next timer.

Everything that uses the running loop for timers and the time (`asyncio.sleep`, `asyncio.timeout`,
the coordinator's `Clock`) then lives in simulated seconds. Nothing else may wait: no sockets, no
threads. Callbacks run in the order in which they became due, so a run is a pure function of its
inputs.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Deadlock(RuntimeError):
    """A task waits for something that never happens."""


class _Jumping(selectors.SelectSelector):
    """A selector that advances the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("the simulation waits for something that never comes")
        if timeout > 0:
            self.now += timeout
        return []


class _InTurn(asyncio.TimerHandle):
    """A timer; of two due at the same moment the one set first runs first: a stream keeps order."""

    order = 0

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _InTurn)
        return (self.when(), self.order) < (other.when(), other.order)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time begins at 0 seconds."""

    def __init__(self) -> None:
        self._jumping, self._timers = _Jumping(), itertools.count()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _InTurn(when, callback, args, self, context)
        timer.order = next(self._timers)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end in simulated time, returns its result, cancels what is left."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main)
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            asyncio.set_event_loop(None)
            loop.close()
