"""Sends feature rows from the verifier straight to drafters.

Each drafter has one stream for rows beside that of its rounds, so a long prompt never delays a
round. Queues are bounded and senders never wait: rows that do not fit, or that a broken stream
leaves behind, are dropped and counted, and listeners are notified. These lose the drafter, and try
it again after a pause; the next rows open another stream.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog

from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import WORKER_WATCH_MS, auth_metadata, open_channel
from dspark.runtime.worker import Worker
from dspark.wire.finite import bytes_in
from dspark.wire.v1 import features_pb2, features_pb2_grpc, types_pb2
from verify_service.batch_runner import FeatureRun
from verify_service.engine_core import EngineCore

log = structlog.get_logger("dspark.feature_push")

BULK_ROWS = 512  # rows of one bulk message
MAX_ENDPOINT = 256
# Host name or address and port: nothing that gRPC resolves as a file or by another scheme.
_ENDPOINT = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Sink:
    """Address and incarnation of a drafter process that receives feature rows."""

    endpoint: str
    incarnation: int

    @property
    def sound(self) -> bool:
        """Whether the endpoint is a valid host and port."""
        fits = len(self.endpoint) <= MAX_ENDPOINT and _ENDPOINT.fullmatch(self.endpoint)
        return bool(fits) and int(self.endpoint.rpartition(":")[2]) <= 65535


class PushListener(Protocol):
    """Notified on the event loop about rows of all senders."""

    def rows_came(self, sink: Sink, ack: features_pb2.FeatureAck) -> None: ...

    def rows_lost(self, sink: Sink, why: str) -> None:
        """Rows sent to this sink and not acknowledged are lost."""


class FeaturePush:
    """Streams of feature rows to all drafters of this verifier. Lives on the event loop."""

    def __init__(self, worker: Worker[EngineCore]) -> None:
        self._worker, self._metrics = worker, worker.metrics
        self._links: dict[Sink, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.listeners: list[PushListener] = []

    def push(self, sink: Sink, run: FeatureRun) -> None:
        """Queues rows for a sink without waiting; rows that cannot be queued are reported lost."""
        count = len(run.token_ids)
        if not self._link(sink).offer(self._chunk(sink, run), count):
            self._metrics.dropped.labels(kind="feature_rows", reason="queue_full").inc(count)
            self._lost(sink, "too many rows wait")

    def _came(self, sink: Sink, ack: features_pb2.FeatureAck) -> None:
        for listener in self.listeners:
            listener.rows_came(sink, ack)

    def _broke(self, link: _Link, why: str) -> None:
        if self._links.get(link.sink) is link:
            task = asyncio.create_task(self._links.pop(link.sink).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._lost(link.sink, why)

    def _lost(self, sink: Sink, why: str) -> None:
        for listener in self.listeners:
            listener.rows_lost(sink, why)

    def _chunk(self, sink: Sink, run: FeatureRun) -> features_pb2.FeatureChunk:
        return features_pb2.FeatureChunk(
            sink_incarnation=sink.incarnation,
            source_incarnation=self._worker.incarnation,
            projection=self._worker.engine.projection,
            sequence=run.sequence,
            epoch=run.epoch,
            start_position=run.start,
            token_ids=run.token_ids,
            rows=types_pb2.TensorChunk(**run.rows.chunk()),
        )

    async def close(self) -> None:
        """Ends every stream; queued rows are dropped and counted."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._closing)

    def _link(self, sink: Sink) -> _Link:
        link = self._links.get(sink)
        if link is None:
            channel = open_channel(
                sink.endpoint, tls=self._worker.security.tls, watch_ms=WORKER_WATCH_MS
            )
            link = self._links[sink] = _Link(self, sink, channel)
        return link


class _Link:
    """The stream of feature rows to one drafter."""

    def __init__(self, push: FeaturePush, sink: Sink, channel: grpc.aio.Channel) -> None:
        self._came, self._broke = push._came, push._broke
        self.sink = sink
        self._metadata = auth_metadata(push._worker.security.token)
        self._queue_rows = push._worker.engine.config.push_queue_rows
        self._metrics, self._channel = push._metrics, channel
        # (chunk, its number of rows)
        self._waiting: deque[tuple[features_pb2.FeatureChunk, int]] = deque()
        self._rows = 0  # rows in all queued chunks
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._stream())

    def offer(self, chunk: features_pb2.FeatureChunk, rows: int) -> bool:
        """Queues a chunk if there is room."""
        if self._rows + rows > self._queue_rows:
            return False
        self._waiting.append((chunk, rows))
        self._rows += rows
        self._more.set()
        return True

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._drop_queued("closed")
        await self._channel.close()

    async def _stream(self) -> None:
        stub = features_pb2_grpc.FeaturesStub(self._channel)  # type: ignore[no-untyped-call]
        travelling: deque[int] = deque()  # rows of each unacknowledged chunk

        async def chunks() -> AsyncIterator[features_pb2.FeatureChunk]:
            while True:
                await self._more.wait()
                chunk, rows = self._waiting.popleft()
                self._rows -= rows
                if not self._waiting:
                    self._more.clear()
                travelling.append(rows)
                self._metrics.feature_rows.labels(direction="sent").inc(rows)
                self._metrics.bytes.labels(direction="sent", kind="features").inc(
                    bytes_in(chunk.rows)
                )
                yield chunk

        acknowledged = 0
        try:
            await self._more.wait()  # opens no stream before there are rows
            async for ack in ending_as_told(
                stub.Push(chunks(), metadata=self._metadata, wait_for_ready=False)
            ):
                while travelling and acknowledged < ack.chunks:
                    travelling.popleft()
                    acknowledged += 1
                if ack.refused:
                    self._metrics.dropped.labels(
                        kind="feature_chunk", reason="refused_by_sink"
                    ).inc(len(ack.refused))
                self._came(self.sink, ack)
            raise ConnectionError("the drafter ended the stream")
        except Exception as error:  # also a bug: the next rows open a new stream
            reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
            bug = None if isinstance(error, (grpc.aio.AioRpcError, ConnectionError)) else error
            log.warning("feature_push.broken", sink=self.sink.endpoint, reason=reason, exc_info=bug)
            self._drop_queued("broken")
            self._broke(self, reason)
        finally:
            if travelling:
                self._metrics.dropped.labels(kind="feature_rows", reason="unacknowledged").inc(
                    sum(travelling)
                )

    def _drop_queued(self, reason: str) -> None:
        if self._rows:
            self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(self._rows)
        self._waiting.clear()
        self._more.clear()
        self._rows = 0
