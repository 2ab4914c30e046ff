"""The Features servicer: checks chunks of rows, queues them for the device, acknowledges them.

A chunk for another process, or of another projection or shape, is refused and counted, and the
stream goes on. Rows of sequences that were never opened are dropped and counted too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc

from draft_service.engine_core import DraftEngineCore
from draft_service.feature_receiver import FeatureReceiver, Outcome
from draft_service.interface import Rows, number_here
from dspark.errors import InvalidRequest, PeerError
from dspark.runtime.channel import MAX_MESSAGE
from dspark.runtime.wire_limits import KIB, Bounds, Read
from dspark.runtime.worker import Worker
from dspark.types import Refusal, RefusalReason
from dspark.wire import codec
from dspark.wire.v1 import features_pb2, features_pb2_grpc

NAME = "dspark.wire.v1.Features"
MAX_ROWS = 4096  # of one chunk
UNTOLD = 64  # done chunks without an acknowledgement, beyond which no more are read
BOUNDS = Bounds(
    {3: ("projection", KIB), 4: ("runs", 8 * MAX_ROWS), 5: ("rows", MAX_MESSAGE)}, most=MAX_ROWS + 4
)


@dataclass(slots=True)
class _Taken:
    """The outcomes of one stream's chunks: how many were read, done and acknowledged."""

    read: int = 0
    done: int = 0
    told: int = 0
    refused: list[features_pb2.FeatureRefusal] = field(default_factory=list)
    # by sequence and epoch, not yet acknowledged
    watermarks: dict[tuple[int, int], int] = field(default_factory=dict)
    # set when a chunk is done, or the stream has ended
    news: asyncio.Event = field(default_factory=asyncio.Event)
    told_all: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, refusals: list[features_pb2.FeatureRefusal]) -> None:
        self.done += 1
        self.refused.extend(refusals)
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
            self._take(chunk, too_large, taken)
            while taken.done - taken.told > UNTOLD:  # its peer reads no acknowledgements
                taken.told_all.clear()
                await taken.told_all.wait()

    def _take(
        self, chunk: features_pb2.FeatureChunk, too_large: InvalidRequest | None, taken: _Taken
    ) -> None:
        taken.read += 1
        if too_large is None and len(chunk.runs) > MAX_ROWS:  # a valid run has a row
            too_large = InvalidRequest("runs", f"more than {MAX_ROWS}")
        if too_large is not None:
            # One refusal for the whole chunk; runs that the bounds cut out count as one.
            self._metrics.dropped.labels(kind="feature_runs", reason="too_many").inc(
                max(len(chunk.runs), 1)
            )
            refusal = Refusal(RefusalReason.INVALID, str(too_large))
            taken.finish([features_pb2.FeatureRefusal(refusal=codec.write_refusal(refusal))])
            return
        read = self._read(chunk)
        if isinstance(read, Refusal):
            taken.finish(self._settle(chunk, [read] * max(len(chunk.runs), 1), taken))
        else:
            self._arrivals.put(
                read, lambda outcomes: taken.finish(self._settle(chunk, outcomes, taken))
            )

    def _settle(
        self, chunk: features_pb2.FeatureChunk, outcomes: Sequence[Outcome], taken: _Taken
    ) -> list[features_pb2.FeatureRefusal]:
        """Counts the outcome of each run, notes watermarks, and returns the refusals."""
        refusals: list[features_pb2.FeatureRefusal] = []
        received = 0
        for run, outcome in zip(chunk.runs or [features_pb2.FeatureRun()], outcomes, strict=True):
            if isinstance(outcome, Refusal):
                reason = outcome.reason.name.lower()
                self._metrics.dropped.labels(kind="feature_rows", reason=reason).inc(
                    len(run.token_ids)
                )
                refusals.append(
                    features_pb2.FeatureRefusal(
                        sequence=run.sequence, epoch=run.epoch, refusal=codec.write_refusal(outcome)
                    )
                )
            else:
                received += len(run.token_ids)
                taken.watermarks[run.sequence, run.epoch] = outcome
        if received:
            self._metrics.feature_rows.labels(direction="received").inc(received)
            self._metrics.bytes.labels(direction="received", kind="features").inc(
                len(chunk.rows.data)
            )
        return refusals

    def _read(self, chunk: features_pb2.FeatureChunk) -> list[Rows] | Refusal:
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
        counts = [len(run.token_ids) for run in chunk.runs]
        if not all(counts) or sum(counts) != len(rows):
            return Refusal(
                RefusalReason.INVALID, f"runs.token_ids: {sum(counts)} ids for {len(rows)} rows"
            )
        runs, first = [], 0
        for run, count in zip(chunk.runs, counts, strict=True):
            its = rows[first : first + count]
            number = number_here(chunk.source_incarnation, run.sequence)
            runs.append(Rows(number, run.epoch, run.start_position, its, run.token_ids))
            first += count
        return runs
