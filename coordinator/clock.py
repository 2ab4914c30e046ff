"""Time, as the coordinator's parts see it: an event loop satisfies it, and a test turns it by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Protocol

TURNS_TO_SEND = 2  # of the event loop, from an order to its bytes: the sender wakes, serialises, hands over


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer: ...


async def let_orders_leave() -> None:
    """Lets messages that were ordered in this turn of the loop leave before whatever the caller does next."""
    for _ in range(TURNS_TO_SEND):
        await asyncio.sleep(0)


async def settled(futures: Iterable[asyncio.Future[Any]], deadline_s: float, clock: Clock) -> None:
    """Returns when all are done, failed ones included, or when the deadline passes. One timer and no task."""
    pending = [future for future in futures if not future.done()]
    if not pending:
        return
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(pending)

    def finish() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def one_done(_: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            finish()

    for future in pending:
        future.add_done_callback(one_done)
    timer = clock.call_later(deadline_s, finish)
    try:
        await waiter
    finally:
        timer.cancel()
        for future in pending:
            future.remove_done_callback(one_done)
