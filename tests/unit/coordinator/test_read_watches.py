"""A client that takes nothing is cut when its time is up and not before; one that reads, however slowly, is not."""

from __future__ import annotations

import asyncio

import pytest
from rounds_cell import virtual

from coordinator.reception.service import ReadWatch, ReadWatches
from dspark.errors import Overloaded
from dspark.runtime.telemetry import Metrics


class Stream:
    """A task that writes to its client, as a service does."""

    def __init__(self, readers: ReadWatches) -> None:
        self._readers = readers
        self.reading: ReadWatch | None = None
        self.errors: list[Exception] = []
        self.task = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        self.reading = self._readers.begin(self.errors.append)
        self.reading.offered()
        try:
            await asyncio.get_running_loop().create_future()  # the transport takes nothing
        finally:
            self.reading.end()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@virtual
async def test_time_runs_from_the_first_message_that_is_not_taken(metrics: Metrics) -> None:
    clock = asyncio.get_running_loop()
    readers = ReadWatches(10.0, clock, metrics)
    stalled, slow = Stream(readers), Stream(readers)
    await asyncio.sleep(0)
    assert slow.reading is not None
    for _ in range(9):
        await asyncio.sleep(1.0)
        slow.reading.taken()
        slow.reading.offered()
    await asyncio.sleep(0.9)
    assert not stalled.errors
    await asyncio.sleep(1.2)
    assert [type(error) for error in stalled.errors] == [Overloaded]
    assert stalled.task.cancelled()
    assert not slow.errors
    assert metrics.value("slow_readers_cut_total") == 1
    slow.task.cancel()


@virtual
async def test_waiting_for_something_to_write_is_not_a_client_s_fault(metrics: Metrics) -> None:
    clock = asyncio.get_running_loop()
    stream = Stream(ReadWatches(10.0, clock, metrics))
    await asyncio.sleep(0)
    assert stream.reading is not None
    stream.reading.taken()
    await asyncio.sleep(100.0)
    assert not stream.errors
    stream.task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(5.0)  # nobody is there any more, and nothing looks
    assert metrics.value("slow_readers_cut_total") == 0
