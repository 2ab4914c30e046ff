"""Rows between their stream and the device: whoever brought some hears what became of them,
whatever happens; who reads no acknowledgements is not read from."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from draft_service.feature_receiver import AHEAD, BOUNDS, MAX_ROWS, QUEUE_ROWS, FeatureReceiver
from draft_service.interface import Rows
from dspark.errors import InvalidRequest
from dspark.runtime.device_worker import DeviceWorker
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read, reading
from dspark.types import RefusalReason
from dspark.wire.v1 import features_pb2, types_pb2

Ack = features_pb2.FeatureAck


class Taking:
    """An engine that takes everything below a position."""

    job_rows, projection = 2048, "p"

    def __init__(self) -> None:
        self.jobs: list[int] = []  # rows of each

    def read_rows(self, chunk: types_pb2.TensorChunk, max_rows: int) -> list[int]:
        return [0] * chunk.shape[0]

    def ingest_many(self, runs: Sequence[Rows]) -> list[int]:
        self.jobs.append(sum(len(run.rows) for run in runs))
        if any(run.start > 1000 for run in runs):
            raise RuntimeError("a bug")
        return [run.start + len(run.rows) for run in runs]


def worker_of(limit: int = 4096) -> Any:
    device = DeviceWorker("draft", limit=limit)
    return SimpleNamespace(metrics=Metrics(), incarnation=5, engine=Taking(), device=device)


def chunk(sequence: int, start: int = 0, count: int = 100, **more: Any) -> bytes:
    rows = types_pb2.TensorChunk(dtype="bfloat16", shape=[count, 1])
    told = {"sink_incarnation": 5, "projection": "p", "token_ids": [0] * count, "rows": rows}
    made = features_pb2.FeatureChunk(sequence=sequence, start_position=start, **told | more)
    return made.SerializeToString()


def pushed(
    worker: Any, chunks: AsyncIterator[bytes], receiver: FeatureReceiver | None = None
) -> AsyncGenerator[Ack, None]:
    async def read() -> AsyncIterator[Read[features_pb2.FeatureChunk]]:
        async for data in chunks:
            yield reading(features_pb2.FeatureChunk.FromString, BOUNDS)(data)

    return (receiver or FeatureReceiver(worker)).Push(read(), cast(Any, None))


async def test_what_cannot_be_taken_is_refused_and_the_next_rows_are_taken() -> None:
    worker, acks = worker_of(limit=0), asyncio.Queue[Ack]()

    async def chunks() -> AsyncIterator[bytes]:
        for start, why in ((0, RefusalReason.NO_PAGES), (2000, RefusalReason.INTERNAL), (0, None)):
            yield chunk(1, start)
            ack = await acks.get()
            assert [each.rows for each in ack.watermarks] == ([] if why else [100])
            assert len(ack.refused) == (why is not None)
            if why is not None:
                told = {"kind": "feature_rows", "reason": why.name.lower()}
                assert worker.metrics.value("dropped_total", **told) == 100
            worker.device._limit = 8

    async for ack in pushed(worker, chunks()):
        acks.put_nowait(ack)
    assert worker.metrics.value("feature_rows_total", direction="received") == 100
    worker.device.close()


async def test_chunks_that_wait_go_together_up_to_a_job() -> None:
    worker = worker_of()

    async def chunks() -> AsyncIterator[bytes]:
        for sequence in range(30):
            yield chunk(sequence, sink_incarnation=5 + (sequence == 3))

    acks = [ack async for ack in pushed(worker, chunks())]
    assert [ack.chunks for ack in acks] == [21, 30]
    assert worker.engine.jobs == [2000, 900]
    assert [each.sequence for ack in acks for each in ack.refused] == [3]
    assert sum(len(ack.watermarks) for ack in acks) == 29
    worker.device.close()


async def test_a_chunk_that_is_too_large_ends_the_stream_and_is_counted() -> None:
    worker = worker_of()

    async def chunks() -> AsyncIterator[bytes]:
        yield chunk(1)
        yield chunk(7, token_ids=[2**32 - 1] * (4 * MAX_ROWS))

    acks = pushed(worker, chunks())
    assert (await anext(acks)).chunks == 1, "what came before it is told"
    with pytest.raises(InvalidRequest, match=r"^token_ids: "):
        await anext(acks)
    assert worker.metrics.value("dropped_total", kind="feature_chunk", reason="too_large") == 1
    worker.device.close()


async def test_who_reads_no_acknowledgements_is_not_read_from() -> None:
    worker, read = worker_of(), 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(5 * AHEAD):
            read += 1
            yield chunk(1, sink_incarnation=6)
            await asyncio.sleep(0)

    acks = pushed(worker, chunks())
    first = await anext(acks)
    for _ in range(20 * AHEAD):
        await asyncio.sleep(0)
    assert read - first.chunks <= AHEAD + 1
    told = [first, *[ack async for ack in acks]]
    assert told[-1].chunks == read == 5 * AHEAD
    assert sum(len(ack.refused) for ack in told) == read
    worker.device.close()


async def test_all_streams_together_bring_no_more_rows_than_may_wait() -> None:
    worker, each = worker_of(), AHEAD // 2
    receiver, freed = FeatureReceiver(worker), threading.Event()
    busy = asyncio.create_task(worker.device.run(freed.wait, 60))

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(each):
            yield chunk(1, count=MAX_ROWS)

    async def push() -> int:
        acks = [ack async for ack in pushed(worker, chunks(), receiver)]
        return sum(len(ack.refused) for ack in acks)

    for streams in (2, 3):
        pushes = [asyncio.create_task(push()) for _ in range(streams)]
        for _ in range(20 * AHEAD):
            await asyncio.sleep(0)
        if streams == 2:  # they break while the device is busy, and leave their room to others
            for one in pushes:
                one.cancel()
            await asyncio.gather(*pushes, return_exceptions=True)
    freed.set()
    await busy
    refused = sum(await asyncio.gather(*pushes))
    assert refused == 3 * each - QUEUE_ROWS // MAX_ROWS
    told = {"kind": "feature_rows", "reason": "no_pages"}
    assert worker.metrics.value("dropped_total", **told) == refused * MAX_ROWS
    worker.device.close()
