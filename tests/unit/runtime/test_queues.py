"""What waits between two threads, or for a peer to read, is bounded, and nobody waits for it."""

import asyncio
import contextlib

import pytest

from dspark.errors import Overloaded
from dspark.runtime import backlog as bounds
from dspark.runtime.backlog import Backlog
from dspark.runtime.outbox import MAX_EVENTS, Outbox
from dspark.runtime.telemetry import Metrics


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(bounds, "MESSAGES", 3)
    monkeypatch.setattr(bounds, "BYTES", 100)
    return Backlog()


@pytest.mark.parametrize(
    ("sizes", "seen", "told"),
    [
        ([1, 1, 1], 1, "3 messages of 3 bytes"),
        ([60, 40], 60, "2 messages of 100 bytes"),
        ([1000], 1000, "1 messages of 1000 bytes"),
    ],
    ids=["messages", "bytes", "one alone may be larger"],
)
def test_what_was_read_is_counted_until_it_is_seen(
    backlog: Backlog, sizes: list[int], seen: int, told: str
) -> None:
    for size in sizes:
        backlog.read(size)
    with pytest.raises(Overloaded, match=told):
        backlog.read(1)
    backlog.seen(seen)
    backlog.read(min(seen, 60))
    with pytest.raises(Overloaded):
        backlog.read(100)


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
