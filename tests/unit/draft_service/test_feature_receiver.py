"""Rows between their streams and the device: whoever brought some hears what became of them,
whatever happens; who reads no acknowledgements is not read from."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from draft_service.engine_core import DraftEngineCore
from draft_service.feature_receiver import QUEUE_ROWS, FeatureReceiver, Outcome
from draft_service.feature_sink import BOUNDS, MAX_ROWS, UNTOLD, FeatureSink
from draft_service.interface import Rows
from dspark.errors import InvalidRequest
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read, reading
from dspark.types import RefusalReason
from dspark.wire.v1 import features_pb2


class Taking:
    """An engine that takes everything below a position."""

    job_rows = 2048

    def ingest_many(self, runs: Sequence[Rows]) -> list[Outcome]:
        if any(run.start > 1000 for run in runs):
            raise RuntimeError("a bug")
        return [run.start + len(run.rows) for run in runs]


def rows(start: int = 0, count: int = 100) -> Rows:
    return Rows(1, 1, start, [0] * count, [0] * count)


async def became(arrivals: FeatureReceiver, run: Rows) -> Outcome:
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    arrivals.put(run, told.set_result)
    return await told


async def test_what_cannot_be_taken_is_refused_and_the_next_rows_are_taken() -> None:
    device = DeviceWorker("draft", limit=0)
    arrivals = FeatureReceiver(cast("DraftEngineCore", Taking()), device)
    for run, why in (
        (rows(), RefusalReason.NO_PAGES),  # the device is full
        (rows(count=QUEUE_ROWS + 1), RefusalReason.NO_PAGES),
        (rows(start=2000), RefusalReason.INTERNAL),
    ):
        outcome = await became(arrivals, run)
        assert outcome.reason is why
        device._limit = 8
    assert await asyncio.gather(became(arrivals, rows()), became(arrivals, rows(100))) == [100, 200]
    await arrivals.close()
    device.close()


async def test_who_cannot_be_told_leaves_the_others(caplog: pytest.LogCaptureFixture) -> None:
    device = DeviceWorker("draft")
    arrivals = FeatureReceiver(cast("DraftEngineCore", Taking()), device)

    def gone(outcome: Outcome) -> None:
        raise RuntimeError("the stream is over")

    arrivals.put(rows(), gone)
    assert await asyncio.wait_for(
        asyncio.gather(became(arrivals, rows()), became(arrivals, rows(100))), 10
    ) == [100, 200]
    assert "the stream is over" in caplog.text
    await arrivals.close()
    device.close()


async def test_a_chunk_that_is_too_large_ends_the_stream_and_is_counted() -> None:
    metrics = Metrics()
    worker: Any = SimpleNamespace(metrics=metrics, incarnation=5)
    sink = FeatureSink(worker, cast(Any, None))
    chunk = features_pb2.FeatureChunk(
        sink_incarnation=5, sequence=7, epoch=2, token_ids=[2**32 - 1] * (4 * MAX_ROWS)
    )

    async def chunks() -> AsyncIterator[Read[features_pb2.FeatureChunk]]:
        yield reading(features_pb2.FeatureChunk.FromString, BOUNDS)(chunk.SerializeToString())

    with pytest.raises(InvalidRequest, match=r"^token_ids: "):
        async for _ in sink.Push(chunks(), cast(Any, None)):
            pass
    assert metrics.value("dropped_total", kind="feature_chunk", reason="too_large") == 1


async def test_who_reads_no_acknowledgements_is_not_read_from() -> None:
    worker: Any = SimpleNamespace(metrics=Metrics(), incarnation=5)
    sink = FeatureSink(worker, cast(Any, None))
    chunk = features_pb2.FeatureChunk(sink_incarnation=6)
    data, read = chunk.SerializeToString(), 0

    async def chunks() -> AsyncIterator[Read[features_pb2.FeatureChunk]]:
        nonlocal read
        for _ in range(5 * UNTOLD):
            read += 1
            yield reading(features_pb2.FeatureChunk.FromString, BOUNDS)(data)
            await asyncio.sleep(0)

    acks = sink.Push(chunks(), cast(Any, None))
    first = await anext(acks)
    for _ in range(20 * UNTOLD):
        await asyncio.sleep(0)
    assert read - first.chunks <= UNTOLD + 1
    told = [first, *[ack async for ack in acks]]
    assert told[-1].chunks == read == 5 * UNTOLD
    assert sum(len(ack.refused) for ack in told) == read
