"""Command streams: order of starting, order of finishing, and what becomes of a peer that does not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from dspark.errors import Overloaded
from dspark.runtime.outbox import MAX_EVENTS
from dspark.runtime.session import CommandStream
from dspark.runtime.telemetry import Metrics


async def numbers(count: int) -> AsyncIterator[int]:
    for number in range(count):
        yield number
        await asyncio.sleep(0)


async def test_a_long_command_does_not_hold_up_the_ones_behind_it() -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def answer(number: int) -> int:
        begun.append(number)
        if number == 0:
            await gate.wait()
        if number == 3:
            gate.set()
        return number

    stream = CommandStream(answer, Metrics())
    events = [event async for event in stream.run(numbers(4))]
    assert begun == [0, 1, 2, 3]
    assert sorted(events) == [0, 1, 2, 3]
    assert events.index(0) > events.index(1)


async def test_a_failed_command_is_counted_and_the_others_are_answered() -> None:
    async def answer(number: int) -> int | None:
        if number == 1:
            raise RuntimeError("a bug")
        return None if number == 2 else number

    metrics = Metrics()
    stream = CommandStream(answer, metrics)
    assert [event async for event in stream.run(numbers(4))] == [0, 3]
    assert metrics.value("dropped_total", kind="command", reason="failed") == 1


async def test_a_peer_that_does_not_read_loses_its_stream_and_nobody_waits_for_it() -> None:
    answered = 0

    async def answer(number: int) -> int:
        nonlocal answered
        answered += 1
        return number

    metrics = Metrics()
    stream = CommandStream(answer, metrics)
    async with contextlib.aclosing(stream.run(numbers(MAX_EVENTS + 50))) as events:
        await anext(events)
        for _ in range(20_000):
            if answered == MAX_EVENTS + 50:
                break
            await asyncio.sleep(0)
        assert answered == MAX_EVENTS + 50, "answering goes on whatever the peer does"
        with pytest.raises(Overloaded):
            [event async for event in events]
    assert metrics.value("dropped_total", kind="event", reason="not_read") > 0
