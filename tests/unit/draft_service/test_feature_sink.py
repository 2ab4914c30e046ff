"""A chunk that is too large is refused as a whole and counted; a peer that reads no
acknowledgements is not read from either."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from draft_service.feature_sink import BOUNDS, MAX_ROWS, UNTOLD, FeatureSink
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read, reading
from dspark.wire.v1 import features_pb2


async def test_a_chunk_that_is_too_large_is_refused_and_counted() -> None:
    metrics = Metrics()
    worker: Any = SimpleNamespace(metrics=metrics, incarnation=5)
    sink = FeatureSink(worker, cast(Any, None))
    chunk = features_pb2.FeatureChunk(
        sink_incarnation=5, sequence=7, epoch=2, token_ids=[2**32 - 1] * (4 * MAX_ROWS)
    )

    async def chunks() -> AsyncIterator[Read[features_pb2.FeatureChunk]]:
        yield reading(features_pb2.FeatureChunk.FromString, BOUNDS)(chunk.SerializeToString())

    acks = [ack async for ack in sink.Push(chunks(), cast(Any, None))]
    (refused,) = [each for ack in acks for each in ack.refused]
    assert (refused.sequence, refused.epoch) == (7, 2)
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
