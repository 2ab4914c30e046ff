"""The coordinator's view of the event loop: its clock, which tests replace, and helpers that send
queued messages first or run long work beside the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# Turns of the event loop until a queued message is sent: the sender wakes, serialises, writes.
TURNS_TO_SEND = 2


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer: ...


async def let_orders_leave() -> None:
    """Yields to the event loop until the messages queued in this turn have been sent."""
    for _ in range(TURNS_TO_SEND):
        await asyncio.sleep(0)


async def beside(long: bool, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Returns the result of `work`. Runs it in a thread when `long`; short work takes less time
    than starting a thread."""
    return await asyncio.to_thread(work, *args, **options) if long else work(*args, **options)
