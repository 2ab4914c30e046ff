"""The event loop, as the coordinator's parts see it: its time, which a test turns by hand; what
others on it must not wait for, and what must leave first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

# of the event loop, from an order to its bytes: the sender wakes, serialises, hands over
TURNS_TO_SEND = 2


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer: ...


async def let_orders_leave() -> None:
    """Lets messages that were ordered in this turn of the loop leave before whatever the caller
    does next."""
    for _ in range(TURNS_TO_SEND):
        await asyncio.sleep(0)


async def beside(long: bool, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """What `work` returns, from beside the event loop where it is `long`; what is not takes less
    time than a thread."""
    return await asyncio.to_thread(work, *args, **options) if long else work(*args, **options)
