"""The Features servicer: checks chunks of rows, queues them for the device, acknowledges them.

A chunk for another process, or of another projection or shape, is refused and counted, and the
stream goes on. Rows of sequences that are not open under their epoch are dropped and
counted too. A chunk with a part that is too large is counted and ends the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

import grpc

from draft_service.engine_core import DraftEngineCore
from draft_service.feature_receiver import FeatureReceiver, Outcome
from draft_service.interface import Rows, number_here
from dspark.errors import PeerError
from dspark.runtime.channel import MAX_MESSAGE
from dspark.runtime.wire_limits import KIB, Bounds, Read
from dspark.runtime.worker import Worker
from dspark.types import Refusal, RefusalReason
from dspark.wire.finite import bytes_in
from dspark.wire.v1 import features_pb2, features_pb2_grpc, types_pb2

NAME = "dspark.wire.v1.Features"
MAX_ROWS = 4096  # of one chunk
UNTOLD = 64  # done chunks without an acknowledgement, beyond which no more are read
BOUNDS = Bounds({3: ("projection", KIB), 9: ("token_ids", 5 * MAX_ROWS), 10: ("rows", MAX_MESSAGE)})


@dataclass(slots=True)
class _Taken:
    """The outcomes of one stream's chunks: how many were read, done and acknowledged."""

    read: int = 0
    done: int = 0
    told: int = 0
    refused: list[types_pb2.SequenceRef] = field(default_factory=list)
    # by sequence and epoch, not yet acknowledged
    watermarks: dict[tuple[int, int], int] = field(default_factory=dict)
    # set when a chunk is done, or the stream has ended
    news: asyncio.Event = field(default_factory=asyncio.Event)
    told_all: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self) -> None:
        self.done += 1
        self.news.set()

    def acknowledge(self) -> features_pb2.FeatureAck:
        self.news.clear()
        refused, self.refused = self.refused, []
        marks, self.watermarks = self.watermarks, {}
        self.told = self.done
        self.told_all.set()
        return features_pb2.FeatureAck(
            chunks=self.done,
            refused=refused,
            watermarks=[
                features_pb2.Watermark(sequence=at[0], epoch=at[1], rows=rows)
                for at, rows in marks.items()
            ],
        )


class FeatureSink(features_pb2_grpc.FeaturesServicer):
    """Takes feature rows over bulk streams."""

    def __init__(self, worker: Worker[DraftEngineCore], arrivals: FeatureReceiver) -> None:
        self._worker, self._metrics, self._arrivals = worker, worker.metrics, arrivals

    async def Push(
        self,
        request_iterator: AsyncIterator[Read[features_pb2.FeatureChunk]],
        context: grpc.aio.ServicerContext,
    ) -> AsyncGenerator[features_pb2.FeatureAck, None]:
        taken = _Taken()
        reading = asyncio.create_task(self._read_all(request_iterator, taken))
        reading.add_done_callback(lambda _: taken.news.set())
        try:
            while not (reading.done() and taken.told == taken.read):
                await taken.news.wait()
                yield taken.acknowledge()
            await reading
        finally:
            reading.cancel()

    async def _read_all(
        self, chunks: AsyncIterator[Read[features_pb2.FeatureChunk]], taken: _Taken
    ) -> None:
        async for chunk, too_large, _ in chunks:
            if too_large is not None:  # how many rows it had is not known
                self._metrics.dropped.labels(kind="feature_chunk", reason="too_large").inc()
                raise too_large
            self._take(chunk, taken)
            while taken.done - taken.told > UNTOLD:  # its peer reads no acknowledgements
                taken.told_all.clear()
                await taken.told_all.wait()

    def _take(self, chunk: features_pb2.FeatureChunk, taken: _Taken) -> None:
        taken.read += 1
        read = self._read(chunk)
        if isinstance(read, Refusal):
            self._settle(chunk, read, taken)
        else:
            self._arrivals.put(read, lambda outcome: self._settle(chunk, outcome, taken))

    def _settle(self, chunk: features_pb2.FeatureChunk, outcome: Outcome, taken: _Taken) -> None:
        """Counts what became of a chunk and notes it for the next acknowledgement."""
        count = len(chunk.token_ids)
        if isinstance(outcome, Refusal):
            reason = outcome.reason.name.lower()
            self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(count)
            taken.refused.append(types_pb2.SequenceRef(sequence=chunk.sequence, epoch=chunk.epoch))
        else:
            self._metrics.feature_rows.labels(direction="received").inc(count)
            self._metrics.bytes.labels(direction="received", kind="features").inc(
                bytes_in(chunk.rows)
            )
            taken.watermarks[chunk.sequence, chunk.epoch] = outcome
        taken.finish()

    def _read(self, chunk: features_pb2.FeatureChunk) -> Rows | Refusal:
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
