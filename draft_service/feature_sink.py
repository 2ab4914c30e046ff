"""The Features servicer: checks what verifiers send, hands rows on, acknowledges with the watermark.

A chunk of another process, projection or shape is refused and counted, and the stream goes on. Rows of sequences that
were never opened are dropped and counted too: room is given by Open alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import grpc
import structlog

from draft_service.arrivals import Arrivals
from draft_service.interface import Engine, Rows
from dspark.errors import Overloaded, PeerError
from dspark.runtime.command_stream import CommandStream
from dspark.runtime.telemetry import Metrics
from dspark.types import Refusal, RefusalReason
from dspark.wire import codec
from dspark.wire.v1 import features_pb2, features_pb2_grpc

log = structlog.get_logger("dspark.feature_sink")

NAME = "dspark.wire.v1.Features"
MAX_ROWS = 4096  # of one chunk


class FeatureSink(features_pb2_grpc.FeaturesServicer):
    """Accepts pushed rows."""

    def __init__(self, *, engine: Engine, arrivals: Arrivals, metrics: Metrics, incarnation: int) -> None:
        self._engine = engine
        self._arrivals = arrivals
        self._metrics = metrics
        self._incarnation = incarnation

    async def Push(
        self, request_iterator: AsyncIterator[features_pb2.FeatureChunk], context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[features_pb2.FeatureAck, None]:
        stream = CommandStream(self._take, self._metrics)
        async for ack in stream.run(request_iterator):
            yield ack

    async def _take(self, chunk: features_pb2.FeatureChunk) -> features_pb2.FeatureAck:
        outcome = await self._ingest(chunk)
        if isinstance(outcome, Refusal):
            reason = outcome.reason.name.lower()
            self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(len(chunk.token_ids))
            return features_pb2.FeatureAck(
                sequence=chunk.sequence, epoch=chunk.epoch, refusal=codec.write_refusal(outcome)
            )
        self._metrics.feature_rows.labels(direction="received").inc(len(chunk.token_ids))
        self._metrics.bytes.labels(direction="received", kind="features").inc(len(chunk.rows.data))
        return features_pb2.FeatureAck(sequence=chunk.sequence, epoch=chunk.epoch, watermark=outcome)

    async def _ingest(self, chunk: features_pb2.FeatureChunk) -> int | Refusal:
        if chunk.sink_incarnation != self._incarnation:
            return Refusal(RefusalReason.WRONG_INCARNATION, f"the rows are for process {chunk.sink_incarnation}")
        if chunk.projection != self._engine.projection:
            return Refusal(RefusalReason.INVALID, f"projection: rows were made by {chunk.projection[:64]!r}")
        try:
            rows = self._engine.read_rows(chunk.rows, MAX_ROWS)
        except PeerError as error:
            return Refusal(RefusalReason.INVALID, str(error))
        if len(chunk.token_ids) != len(rows):
            return Refusal(RefusalReason.INVALID, f"token_ids: {len(chunk.token_ids)} ids for {len(rows)} rows")
        try:
            return await self._arrivals.put(Rows(chunk.sequence, chunk.epoch, chunk.start_position, rows))
        except Overloaded as error:
            return Refusal(RefusalReason.NO_PAGES, str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.error("feature_sink.failed", exc_info=error)
            return Refusal(RefusalReason.INTERNAL, "a bug; see the drafter's log")
