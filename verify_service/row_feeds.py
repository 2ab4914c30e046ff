"""Feeds kept feature rows to one drafter over a bulk stream, a bounded number at a time.

The verifier keeps the rows, so nothing is queued here: a run of rows is read when it may be sent,
and read again if it is lost. Methods run in turns (see `round_driver`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dspark.rounds.control import DrafterAt
from dspark.rounds.events import DrafterLost, DrafterReady, Told
from dspark.runtime.worker import Worker
from dspark.types import Cursor
from dspark.wire.v1 import features_pb2
from verify_service.batch_runner import FeatureRun
from verify_service.engine_core import EngineCore
from verify_service.row_stream import RowStream

log = structlog.get_logger("dspark.rounds")

BULK_ROWS = 512  # rows of one bulk message
AWAY_BYTES = 8 << 20  # most unacknowledged bytes per drafter
# without an acknowledgement, after which a drafter is lost; longer if its blocks may take longer
PATIENCE_S = 5.0

Key = tuple[int, int]  # sequence, epoch


@dataclass(slots=True)
class _Feed:
    next: int  # rows below this one were sent
    stop: int


class RowFeed:
    """The contexts that one drafter was asked to open, and their rows. tell: runs a function on the
    device thread and feeds its result to the loop."""

    def __init__(
        self,
        worker: Worker[EngineCore],
        loop: asyncio.AbstractEventLoop,
        sink: DrafterAt,
        tell: Callable[[Callable[[], Sequence[Told]]], None],
    ) -> None:
        self._worker, self._loop, self._sink, self._tell = worker, loop, sink, tell
        self.contexts: dict[Key, bool] = {}  # whether the drafter has opened them
        self._feeds: dict[Key, _Feed] = {}
        self._stream: RowStream | None = None
        self._away: deque[int] = deque()  # rows of each message not acknowledged
        self._acknowledged = 0  # messages of the stream
        self._since = 0.0  # last progress, or when it got something to do
        config, width = worker.engine.config, worker.engine.feature_width
        self._patience_s = max(PATIENCE_S, config.drafter_patience_s)
        # rows; those of a language model have no bytes
        self._most = min(max(AWAY_BYTES // max(2 * width, 1), BULK_ROWS), config.push_queue_rows)

    def open(self, key: Key) -> None:
        """Notes a context that the drafter is asked to open, or to start over. Its rows wait for
        `opened`."""
        self.contexts[key] = False
        self._feeds.pop(key, None)

    def opened(self, key: Key) -> None:
        """Starts sending: the drafter has opened this context."""
        self.contexts[key] = True
        if key in self._feeds:
            if not self._away:  # else opening is no progress
                self._since = time.monotonic()
            self._go_on()

    def send(self, key: Key, start: int, stop: int) -> None:
        """Feeds rows start .. stop - 1; extends a running feed of the same sequence."""
        if key not in self.contexts:
            return  # the drafter refused it
        if self._stream is None:
            self._stream = RowStream(
                self._worker,
                self._sink,
                self._loop,
                lambda stream, ack: self._tell(lambda: self._came(stream, ack)),
                lambda stream, why: self._tell(lambda: self._lost(stream, why)),
            )
        if self.overdue_at is None:
            self._since = time.monotonic()
        feed = self._feeds.setdefault(key, _Feed(start, stop))
        feed.stop = max(feed.stop, stop)
        self._go_on()

    def close(self, key: Key) -> None:
        """Ends the feed of a sequence. Its rows that are on their way stay there."""
        self.contexts.pop(key, None)
        self._feeds.pop(key, None)

    def end(self) -> None:
        """Ends the stream; rows on their way are dropped."""
        if self._stream is not None:
            self._stream.close()
        self._drop()

    def _drop(self) -> None:
        """Counts the rows of a stream that is no more, and forgets it."""
        if away := sum(self._away):
            dropped = self._worker.metrics.dropped
            dropped.labels(kind="feature_rows", reason="unacknowledged").inc(away)
        self._away.clear()
        self._stream, self._acknowledged = None, 0

    @property
    def overdue_at(self) -> float | None:
        """When the drafter has taken no rows for too long, in monotonic seconds; None if it has
        none to take, not even of sequences that left."""
        return self._since + self._patience_s if self._feeds or self._away else None

    def _go_on(self) -> None:
        if self._stream is None:
            return
        room = self._most - sum(self._away)
        for key, feed in [each for each in self._feeds.items() if self.contexts.get(each[0])]:
            while feed.next < feed.stop and room > 0:
                last = min(feed.next + BULK_ROWS, feed.stop)
                run = self._read(Cursor(*key, 0, last + 1), feed.next)
                if run is None:  # no rows are kept: it has no drafts
                    del self._feeds[key]
                    break
                self._stream.push(run)
                self._away.append(last - feed.next)
                room -= self._away[-1]
                feed.next = last

    def _read(self, cursor: Cursor, start: int) -> FeatureRun | None:
        try:
            return self._worker.engine.features(cursor, start)
        except Exception as error:  # out of memory, say
            log.error("rows.not_read", sequence=cursor.sequence, exc_info=error)
            return None

    def _came(self, stream: RowStream, ack: features_pb2.FeatureAck) -> Sequence[Told]:
        if self._stream is not stream:
            return ()
        ready: list[Told] = []
        done = min(ack.chunks, stream.sent)  # a drafter may be wrong about what it took
        if self._acknowledged < done:
            self._since = time.monotonic()
        while self._acknowledged < done:
            self._away.popleft()
            self._acknowledged += 1
        for mark in ack.watermarks:
            key = (mark.sequence, mark.epoch)
            feed = self._feeds.get(key)
            if feed is not None and (held := min(mark.rows, feed.next)) >= feed.stop:
                del self._feeds[key]
                ready.append(DrafterReady(self._sink.drafter, *key, held))
        if ack.refused:  # no drafts until a plan names another drafter
            dropped = self._worker.metrics.dropped
            dropped.labels(kind="feature_chunk", reason="refused_by_sink").inc(len(ack.refused))
            for ref in ack.refused:
                self._feeds.pop((ref.sequence, ref.epoch), None)
        self._go_on()
        return ready

    def _lost(self, stream: RowStream, why: str) -> Sequence[Told]:
        if self._stream is not stream:
            return ()
        self._drop()
        return [DrafterLost(self._sink.drafter, f"lost: {why}")] if self._feeds else ()
