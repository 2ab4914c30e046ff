"""Chunks of too many runs are refused as a whole and counted, however small their runs are; a peer
that reads no acknowledgements is not read from either."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from draft_service.feature_sink import BOUNDS, MAX_ROWS, UNTOLD, FeatureSink
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import LOOKED_AT, Read, reading
from dspark.types import RefusalReason
from dspark.wire.v1 import features_pb2


@pytest.mark.parametrize(
    ("runs", "counted"),
    [
        # small enough to be parsed whole
        (
            [features_pb2.FeatureRun()] * (MAX_ROWS + 1),
            MAX_ROWS + 1,
        ),
        # left out before it is parsed
        (
            [features_pb2.FeatureRun(sequence=1 << 60)] * (2 * MAX_ROWS),
            1,
        ),
    ],
    ids=["empty runs", "large message"],
)
async def test_too_many_runs_are_one_refusal_and_counted(
    runs: list[features_pb2.FeatureRun], counted: int
) -> None:
    metrics = Metrics()
    worker: Any = SimpleNamespace(metrics=metrics, incarnation=5)
    sink = FeatureSink(worker, cast(Any, None))
    data = features_pb2.FeatureChunk(sink_incarnation=5, runs=runs).SerializeToString()
    assert (len(data) > LOOKED_AT) == (counted == 1)

    async def chunks() -> AsyncIterator[Read[features_pb2.FeatureChunk]]:
        yield reading(features_pb2.FeatureChunk.FromString, BOUNDS)(data)

    acks = [ack async for ack in sink.Push(chunks(), cast(Any, None))]
    refused = [each for ack in acks for each in ack.refused]
    assert [each.refusal.reason for each in refused] == [RefusalReason.INVALID]
    assert "runs" in refused[0].refusal.message
    assert metrics.value("dropped_total", kind="feature_runs", reason="too_many") == counted


async def test_who_reads_no_acknowledgements_is_not_read_from() -> None:
    worker: Any = SimpleNamespace(metrics=Metrics(), incarnation=5)
    sink = FeatureSink(worker, cast(Any, None))
    chunk = features_pb2.FeatureChunk(sink_incarnation=6, runs=[features_pb2.FeatureRun()])
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
