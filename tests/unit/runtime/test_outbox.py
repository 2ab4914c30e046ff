"""Events on their way to a peer that does not read: it loses its stream, and nobody waits for
it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dspark.errors import Overloaded
from dspark.runtime.outbox import MAX_EVENTS, Outbox
from dspark.runtime.telemetry import Metrics


def over() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


async def test_events_leave_in_order_until_the_end() -> None:
    outbox: Outbox[int] = Outbox(Metrics())
    for number in range(3):
        outbox.put(number)
    assert [event async for event in outbox.until(over())] == [0, 1, 2]


async def test_a_peer_that_does_not_read_loses_its_stream_and_nobody_waits_for_it() -> None:
    metrics = Metrics()
    outbox: Outbox[int] = Outbox(metrics)
    for number in range(MAX_EVENTS + 50):
        outbox.put(number)
    async with contextlib.aclosing(outbox.until(over())) as events:
        with pytest.raises(Overloaded):
            [event async for event in events]
    assert metrics.value("dropped_total", kind="event", reason="not_read") > 0
