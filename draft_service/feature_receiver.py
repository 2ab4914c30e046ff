"""The Features servicer: checks chunks of rows, has the device ingest them, acknowledges them.

Chunks that a stream brings while the device is busy are ingested together, in one job; rounds have
priority over them. A chunk for another process, or of another projection or shape, is refused and
counted, and the stream goes on. Rows of sequences that are not open under their epoch are dropped
and counted too. A chunk with a part that is too large is counted and ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import grpc
import structlog

from draft_service.engine_core import DraftEngineCore
from draft_service.interface import Rows, number_here
from dspark.errors import Overloaded, PeerError, Unavailable
from dspark.runtime.channel import MAX_MESSAGE
from dspark.runtime.wire_limits import KIB, Bounds, Read
from dspark.runtime.worker import Worker
from dspark.types import Refusal, RefusalReason
from dspark.wire.finite import bytes_in
from dspark.wire.v1 import features_pb2, features_pb2_grpc, types_pb2

log = structlog.get_logger("dspark.feature_receiver")

NAME = "dspark.wire.v1.Features"
MAX_ROWS = 4096  # of one chunk
AHEAD = 64  # chunks of a stream that wait for the device, beyond which no more are read
QUEUE_ROWS = 1 << 18  # rows of all streams that may wait for the device
BOUNDS = Bounds({3: ("projection", KIB), 9: ("token_ids", 5 * MAX_ROWS), 10: ("rows", MAX_MESSAGE)})

Chunk = tuple[features_pb2.FeatureChunk, Rows | Refusal]  # with its rows, or why it has none


class FeatureReceiver(features_pb2_grpc.FeaturesServicer):
    """Takes feature rows over bulk streams."""

    def __init__(self, worker: Worker[DraftEngineCore]) -> None:
        self._worker, self._metrics = worker, worker.metrics
        self._waiting = 0  # rows of all streams that wait for the device

    async def Push(
        self,
        request_iterator: AsyncIterator[Read[features_pb2.FeatureChunk]],
        context: grpc.aio.ServicerContext,
    ) -> AsyncGenerator[features_pb2.FeatureAck, None]:
        ahead: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue(AHEAD)
        reading = asyncio.create_task(self._read_all(request_iterator, ahead))
        done = 0
        try:
            while isinstance(chunk := await ahead.get(), tuple):
                chunks, rows = [chunk], len(chunk[0].token_ids)
                while rows < self._worker.engine.job_rows and not ahead.empty():
                    if not isinstance(more := ahead.get_nowait(), tuple):
                        ahead.put_nowait(more)  # the end
                        break
                    chunks.append(more)
                    rows += len(more[0].token_ids)
                self._waiting -= _rows_of(chunks)
                outcomes = await self._outcomes([each for _, each in chunks])
                done += len(chunks)
                yield self._acknowledgement(done, [each for each, _ in chunks], outcomes)
            if chunk is not None:
                raise chunk
        finally:
            reading.cancel()
            left = [ahead.get_nowait() for _ in range(ahead.qsize())]  # of a stream that broke
            self._waiting -= _rows_of(left)

    async def _read_all(
        self,
        chunks: AsyncIterator[Read[features_pb2.FeatureChunk]],
        ahead: asyncio.Queue[Chunk | Exception | None],
    ) -> None:
        """Queues the chunks of a stream, and then why it ended: None where its peer did."""
        end: Exception | None = None
        try:
            async for chunk, too_large, _ in chunks:
                if too_large is not None:  # how many rows it had is not known
                    self._metrics.dropped.labels(kind="feature_chunk", reason="too_large").inc()
                    raise too_large
                arrived = chunk, self._read(chunk)
                if isinstance(arrived[1], Refusal):
                    chunk.ClearField("rows")  # what is refused takes no memory until it is told
                await ahead.put(arrived)
                self._waiting += _rows_of([arrived])
        except Exception as error:
            end = error
        await ahead.put(end)

    def _read(self, chunk: features_pb2.FeatureChunk) -> Rows | Refusal:
        if self._waiting + len(chunk.token_ids) > QUEUE_ROWS:
            why = f"{self._waiting} feature rows wait for the device"
            return Refusal(RefusalReason.NO_PAGES, why)
        if chunk.sink_incarnation != self._worker.incarnation:
            return Refusal(
                RefusalReason.WRONG_INCARNATION,
                f"the rows are for process {chunk.sink_incarnation}",
            )
        if chunk.projection != self._worker.engine.projection:
            return Refusal(
                RefusalReason.INVALID, f"projection: rows were made by {chunk.projection[:64]!r}"
            )
        try:
            rows = self._worker.engine.read_rows(chunk.rows, MAX_ROWS)
        except PeerError as error:
            return Refusal(RefusalReason.INVALID, str(error))
        if len(chunk.token_ids) != len(rows):
            return Refusal(
                RefusalReason.INVALID, f"token_ids: {len(chunk.token_ids)} for {len(rows)} rows"
            )
        number = number_here(chunk.source_incarnation, chunk.sequence)
        return Rows(number, chunk.epoch, chunk.start_position, rows, chunk.token_ids)

    async def _outcomes(self, read: Sequence[Rows | Refusal]) -> list[int | Refusal]:
        """Ingests the rows in one job: each sequence's watermark afterwards, or why not."""
        runs = [each for each in read if isinstance(each, Rows)]
        told: Sequence[int | Refusal] = ()
        if runs:
            try:
                told = await self._worker.device.run(self._worker.engine.ingest_many, runs)
            except (Overloaded, Unavailable) as error:
                told = [Refusal(RefusalReason.NO_PAGES, str(error))] * len(runs)
            except Exception as error:
                log.error("feature_receiver.failed", exc_info=error)
                refusal = Refusal(RefusalReason.INTERNAL, "a bug; see the drafter's log")
                told = [refusal] * len(runs)
        ingested = iter(told)
        return [next(ingested) if isinstance(each, Rows) else each for each in read]

    def _acknowledgement(
        self,
        done: int,
        chunks: Sequence[features_pb2.FeatureChunk],
        outcomes: Sequence[int | Refusal],
    ) -> features_pb2.FeatureAck:
        """Counts what became of chunks, and tells it. done: chunks of the stream so far."""
        refused = list[types_pb2.SequenceRef]()
        watermarks = dict[tuple[int, int], int]()
        for chunk, outcome in zip(chunks, outcomes, strict=True):
            count = len(chunk.token_ids)
            if isinstance(outcome, Refusal):
                reason = outcome.reason.name.lower()
                self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(count)
                refused.append(types_pb2.SequenceRef(sequence=chunk.sequence, epoch=chunk.epoch))
            else:
                self._metrics.feature_rows.labels(direction="received").inc(count)
                self._metrics.bytes.labels(direction="received", kind="features").inc(
                    bytes_in(chunk.rows)
                )
                watermarks[chunk.sequence, chunk.epoch] = outcome
        return features_pb2.FeatureAck(
            chunks=done,
            refused=refused,
            watermarks=[
                features_pb2.Watermark(sequence=at[0], epoch=at[1], rows=rows)
                for at, rows in watermarks.items()
            ],
        )


def _rows_of(arrived: Sequence[Chunk | Exception | None]) -> int:
    """The rows among what streams brought."""
    chunks = [each for each in arrived if isinstance(each, tuple)]
    return sum(len(read.rows) for _, read in chunks if isinstance(read, Rows))
