"""The bulk stream of feature rows from the verifier straight to one drafter.

It lies beside the stream of rounds, so a long prompt never delays a round. Senders never wait; who
feeds a drafter bounds what is on its way (`row_feeds`). A stream that breaks is lost once, with the
rows that were not acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import structlog

from dspark.rounds.control import DrafterAt
from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import WORKER_WATCH_MS, auth_metadata, open_channel
from dspark.runtime.worker import Worker
from dspark.wire.finite import bytes_in
from dspark.wire.v1 import features_pb2, features_pb2_grpc, types_pb2
from verify_service.batch_runner import FeatureRun
from verify_service.engine_core import EngineCore

log = structlog.get_logger("dspark.rounds")


class RowStream:
    """A stream of rows. came: called with the stream and every acknowledgement; lost: called with
    the stream and the reason of its end. Both run on the event loop; methods on any thread."""

    def __init__(
        self,
        worker: Worker[EngineCore],
        sink: DrafterAt,
        loop: asyncio.AbstractEventLoop,
        came: Callable[[RowStream, features_pb2.FeatureAck], None],
        lost: Callable[[RowStream, str], None],
    ) -> None:
        self._worker, self._sink, self._loop = worker, sink, loop
        self._came, self._lost = came, lost
        self._waiting: asyncio.Queue[FeatureRun] = asyncio.Queue()
        self.sent = 0  # runs of rows that left the queue
        self.ended = asyncio.run_coroutine_threadsafe(self._run(), loop)

    def push(self, run: FeatureRun) -> None:
        """Queues rows; never waits. A stream that has ended drops them."""
        self._loop.call_soon_threadsafe(self._waiting.put_nowait, run)

    def close(self) -> None:
        self.ended.cancel()

    async def _run(self) -> None:
        why = "the drafter ended the stream"
        security, at = self._worker.security, self._sink.endpoint
        try:
            channel = open_channel(at, tls=security.tls, watch_ms=WORKER_WATCH_MS)
            try:
                stub = features_pb2_grpc.FeaturesStub(channel)  # type: ignore[no-untyped-call]
                told = auth_metadata(security.token)
                call = stub.Push(self._chunks(), metadata=told, wait_for_ready=False)
                async for ack in ending_as_told(call):
                    self._came(self, ack)
            finally:
                await channel.close()
        except grpc.aio.AioRpcError as error:
            why = error.code().name
        # unreadable certificates, or a bug: the next rows open another stream
        except Exception as error:
            log.error("row_stream.failed", sink=at, exc_info=error)
            why = str(error)
        log.warning("row_stream.broken", sink=at, reason=why)
        self._lost(self, why)

    async def _chunks(self) -> AsyncIterator[features_pb2.FeatureChunk]:
        metrics = self._worker.metrics
        while True:
            run = await self._waiting.get()
            self.sent += 1
            chunk = features_pb2.FeatureChunk(
                sink_incarnation=self._sink.incarnation,
                source_incarnation=self._worker.incarnation,
                projection=self._worker.engine.projection,
                sequence=run.sequence,
                epoch=run.epoch,
                start_position=run.start,
                token_ids=run.token_ids,
                rows=types_pb2.TensorChunk(**run.rows.chunk()),
            )
            metrics.feature_rows.labels(direction="sent").inc(len(run.token_ids))
            metrics.bytes.labels(direction="sent", kind="features").inc(bytes_in(chunk.rows))
            metrics.dropped.labels(kind="feature_rows", reason="not_finite").inc(run.rows.zeroed)
            yield chunk
