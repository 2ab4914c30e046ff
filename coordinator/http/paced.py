"""Answers over HTTP under a pace: as `coordinator/reception/pacing.py` does it over gRPC, in the words of HTTP.

A stream is filled up with comments, which every reader of events skips, and its last event comes at the end of a term.
A whole answer comes at the end of a term too, filled up with spaces to as many bytes as a stream would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Awaitable

from coordinator.reception.pacing import Pace

_COMMENT = (b": ", b"\n\n")
_LEAST = sum(map(len, _COMMENT))


async def paced_events(events: AsyncGenerator[bytes], pace: Pace, max_tokens: int) -> AsyncGenerator[bytes]:
    """What `events` yields, as one frame each interval; its last event with the last frame. Its errors are raised."""
    loop = asyncio.get_running_loop()
    began, ticks, end = loop.time(), 0, pace.ticks(max_tokens)
    waiting: list[bytes] = []

    async def read() -> None:
        async with contextlib.aclosing(events):
            async for event in events:
                waiting.append(event)

    reading = asyncio.create_task(read())
    try:
        while True:
            ticks += 1
            await asyncio.sleep(max(began + ticks * pace.interval_s - loop.time(), 0.0))
            if reading.done():
                reading.result()
                if ticks >= end and len(waiting) <= 1:
                    yield framed(b"".join(waiting), pace.frame)
                    return
            if ticks >= end:
                end += pace.ticks(max_tokens)
            ready = _fitting(waiting, pace.frame - _LEAST)
            del waiting[: len(ready)]
            yield framed(b"".join(ready), pace.frame)
    finally:
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await reading


async def paced_whole(answer: Awaitable[bytes], pace: Pace, max_tokens: int) -> bytes:
    """A whole answer, when a term ends."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    body = await answer
    ticks = pace.ticks(max_tokens)
    term = ticks * pace.interval_s
    spent = loop.time() - began
    await asyncio.sleep(max(math.ceil(spent / term), 1) * term - spent)
    size = pace.frame * ticks
    return body.ljust(size * max(math.ceil(len(body) / size), 1))


def _fitting(events: list[bytes], room: int) -> list[bytes]:
    """The first events, as many as a frame holds but for the very last one, which ends the stream."""
    size, count = 0, 0
    for event in events[:-1]:
        size += len(event)
        if count and size > room:
            break
        count += 1
    return events[:count]


def framed(data: bytes, frame: int) -> bytes:
    """The events, filled up by a comment to the least multiple of `frame` bytes that holds them."""
    whole = frame * math.ceil((len(data) + _LEAST) / frame)
    return data + _COMMENT[0] + b"." * (whole - len(data) - _LEAST) + _COMMENT[1]
