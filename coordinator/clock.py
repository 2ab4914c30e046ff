"""The event loop as a clock, which runs in simulated time too, and helpers that wait for a
condition or run long work beside the loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Clock = asyncio.AbstractEventLoop
Timer = asyncio.TimerHandle

# Turns of the event loop until a queued message is sent: the sender wakes, serialises, writes.
TURNS_TO_SEND = 2
LOOK_S = 0.01  # from one look at an awaited condition to the next


async def until(done: Callable[[], bool], longest_s: float) -> None:
    """Waits until `done`, for `longest_s` seconds at most."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(longest_s):
            while not done():  # noqa: ASYNC110 - looked at, so nobody has to signal it
                await asyncio.sleep(LOOK_S)


async def beside(long: bool, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Returns the result of `work`. Runs it in a thread when `long`; short work takes less time
    than starting a thread."""
    return await asyncio.to_thread(work, *args, **options) if long else work(*args, **options)
