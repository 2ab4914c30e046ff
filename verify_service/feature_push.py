"""Feature rows on their way to drafters, straight from the verifier.

Per drafter one stream, beside that of its rounds, so that a long prompt never delays a round. Queues are bounded and
nobody waits for them: what does not fit, and what a broken stream leaves behind, is dropped and counted, and whoever
sent it hears so. A broken drafter is tried again after a pause, by then usually under a new incarnation.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog

from dspark.runtime.aio_call import ending_as_told
from dspark.runtime.channel import WORKER_WATCH_MS, auth_metadata, open_channel
from dspark.runtime.telemetry import Metrics
from dspark.runtime.tls import Tls
from dspark.wire.v1 import features_pb2, features_pb2_grpc, types_pb2
from verify_service.interface import FeatureRun

log = structlog.get_logger("dspark.feature_push")

PAUSE_S = 1.0  # after a broken stream, before the same drafter is tried again
IDLE_S = 300.0  # a drafter nobody names any more is let go
BULK_ROWS = 512  # rows of one bulk message


@dataclass(frozen=True, slots=True)
class Sink:
    """A drafter process."""

    endpoint: str
    incarnation: int


Piece = tuple[FeatureRun, int, int]  # rows first .. last - 1 of a run


class PushListener(Protocol):
    """Whoever wants to know what became of rows, its own among others'; called on the event loop."""

    def rows_came(self, sink: Sink, ack: features_pb2.FeatureAck) -> None: ...

    def rows_lost(self, sink: Sink, why: str) -> None:
        """What was on its way to this process and is not acknowledged will not be."""


class FeaturePush:
    """All drafters this verifier feeds. Lives on the event loop."""

    def __init__(
        self,
        *,
        incarnation: int,
        projection: str,
        token: str | None,
        tls: Tls | None = None,
        queue_rows: int,
        metrics: Metrics,
    ) -> None:
        self._incarnation = incarnation
        self._projection = projection
        self._token, self._tls = token, tls
        self._queue_rows = queue_rows
        self._metrics = metrics
        self._links: dict[Sink, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.listeners: list[PushListener] = []

    def push(self, sink: Sink, features: Sequence[FeatureRun]) -> int:
        """Hands rows to the sender at once; returns how many it took."""
        link = self._link(sink)
        if link is None:
            self._drop(sum(len(run.token_ids) for run in features), "broken")
            self._lost(sink, "broken")
            return 0
        taken = 0
        for pieces in _messages(features, BULK_ROWS):
            count = sum(last - first for _, first, last in pieces)
            if link.offer(self._chunk(sink, pieces), count):
                taken += count
            else:
                self._drop(count, "queue_full")
                self._lost(sink, "too many rows wait")
        return taken

    def _came(self, sink: Sink, ack: features_pb2.FeatureAck) -> None:
        for listener in self.listeners:
            listener.rows_came(sink, ack)

    def _lost(self, sink: Sink, why: str) -> None:
        for listener in self.listeners:
            listener.rows_lost(sink, why)

    def _chunk(self, sink: Sink, pieces: list[Piece]) -> features_pb2.FeatureChunk:
        return features_pb2.FeatureChunk(
            sink_incarnation=sink.incarnation,
            source_incarnation=self._incarnation,
            projection=self._projection,
            runs=[
                features_pb2.FeatureRun(
                    sequence=run.sequence,
                    epoch=run.epoch,
                    start_position=run.start + first,
                    token_ids=run.token_ids[first:last],
                )
                for run, first, last in pieces
            ],
            rows=_joined([run.message(first, last) for run, first, last in pieces]),
        )

    async def close(self) -> None:
        """Ends every stream; what still waits is dropped and counted."""
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links), *self._closing)

    def _link(self, sink: Sink) -> _Link | None:
        now = time.monotonic()
        link = self._links.get(sink)
        if link is not None and link.broken_at is not None:
            if now - link.broken_at < PAUSE_S:
                return None
            self._let_go(sink)
            link = None
        if link is None:
            for other, idle in [(s, now - each.used_at) for s, each in self._links.items()]:
                if idle > IDLE_S:
                    self._let_go(other)
            channel = open_channel(sink.endpoint, tls=self._tls, watch_ms=WORKER_WATCH_MS)
            link = self._links[sink] = _Link(self, sink, channel)
        link.used_at = now
        return link

    def _let_go(self, sink: Sink) -> None:
        task = asyncio.create_task(self._links.pop(sink).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _drop(self, rows: int, reason: str) -> None:
        self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(rows)


class _Link:
    """The stream to one drafter."""

    def __init__(
        self,
        push: FeaturePush,
        sink: Sink,
        channel: grpc.aio.Channel,
    ) -> None:
        self._came, self._lost = push._came, push._lost
        self.used_at = time.monotonic()
        self.broken_at: float | None = None
        self._sink = sink
        self._metadata = auth_metadata(push._token)
        self._metrics, self._queue_rows, self._channel = push._metrics, push._queue_rows, channel
        self._queue = _Queue()
        self._task = asyncio.create_task(self._stream(self._queue))

    def offer(self, chunk: features_pb2.FeatureChunk, rows: int) -> bool:
        """Queues a chunk if there is room."""
        if self.broken_at is not None or self._queue.rows + rows > self._queue_rows:
            return False
        self._queue.put(chunk, rows)
        return True

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._drop_queued("closed")
        await self._channel.close()

    async def _stream(self, queue: _Queue) -> None:
        stub = features_pb2_grpc.FeaturesStub(self._channel)  # type: ignore[no-untyped-call]
        travelling: deque[int] = deque()  # rows of the chunks that no acknowledgement has come for

        async def chunks() -> AsyncIterator[features_pb2.FeatureChunk]:
            while True:
                chunk, rows = await queue.get()
                travelling.append(rows)
                self._metrics.feature_rows.labels(direction="sent").inc(rows)
                self._metrics.bytes.labels(direction="sent", kind="features").inc(len(chunk.rows.data))
                yield chunk

        acknowledged = 0
        try:
            await queue.first()  # no stream before there is something to send
            async for ack in ending_as_told(stub.Push(chunks(), metadata=self._metadata, wait_for_ready=False)):
                while travelling and acknowledged < ack.chunks:
                    travelling.popleft()
                    acknowledged += 1
                if ack.refused:
                    self._metrics.dropped.labels(kind="feature_runs", reason="refused_by_sink").inc(len(ack.refused))
                self._came(self._sink, ack)
            raise ConnectionError("the drafter ended the stream")
        except (grpc.aio.AioRpcError, ConnectionError) as error:
            reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else str(error)
            if self.broken_at is None:
                self.broken_at = time.monotonic()
                log.warning("feature_push.broken", sink=self._sink.endpoint, reason=reason)
            self._drop_queued("broken")
            self._lost(self._sink, reason)
        finally:
            if travelling:
                self._metrics.dropped.labels(kind="feature_rows", reason="unacknowledged").inc(sum(travelling))

    def _drop_queued(self, reason: str) -> None:
        rows = self._queue.clear()
        if rows:
            self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(rows)


class _Queue:
    """Chunks in order, with a count of the rows that wait."""

    def __init__(self) -> None:
        self.rows = 0
        self._chunks: asyncio.Queue[tuple[features_pb2.FeatureChunk, int]] = asyncio.Queue()
        self._begun = asyncio.Event()

    def put(self, chunk: features_pb2.FeatureChunk, rows: int) -> None:
        self.rows += rows
        self._chunks.put_nowait((chunk, rows))
        self._begun.set()

    async def first(self) -> None:
        await self._begun.wait()

    async def get(self) -> tuple[features_pb2.FeatureChunk, int]:
        chunk, rows = await self._chunks.get()
        self.rows -= rows
        return chunk, rows

    def clear(self) -> int:
        rows, self.rows = self.rows, 0
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                self._chunks.get_nowait()
        return rows


def _messages(features: Sequence[FeatureRun], most: int) -> Iterator[list[Piece]]:
    """Runs of at most `most` rows together, in order; a longer run is cut."""
    pieces: list[Piece] = []
    size = 0
    for run in features:
        rows = len(run.token_ids)
        for first in range(0, rows, most):
            last = min(first + most, rows)
            if pieces and size + last - first > most:
                yield pieces
                pieces, size = [], 0
            pieces.append((run, first, last))
            size += last - first
    if pieces:
        yield pieces


def _joined(parts: list[types_pb2.TensorChunk]) -> types_pb2.TensorChunk:
    """Rows one after the other: every part is [its rows, H] of one dtype."""
    if len(parts) == 1:
        return parts[0]
    shape = (sum(part.shape[0] for part in parts), parts[0].shape[1])
    return types_pb2.TensorChunk(dtype=parts[0].dtype, shape=shape, data=b"".join(part.data for part in parts))
