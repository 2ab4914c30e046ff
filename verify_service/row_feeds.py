"""Feeds kept feature rows to drafters over bulk streams, a bounded number at a time.

The verifier keeps the rows, so nothing is queued here: a run of rows is read when it may be sent,
and read again if it is lost. Methods run in turns (see `round_driver`).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

from dspark.rounds.events import DrafterLost, DrafterReady, SendRows, Told
from dspark.runtime.worker import Worker
from dspark.types import Cursor
from dspark.wire.v1 import features_pb2
from verify_service.batch_runner import FeatureRun
from verify_service.engine_core import EngineCore
from verify_service.row_stream import DrafterAddress, RowStream

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


@dataclass(slots=True)
class _Fed:
    """What one drafter is fed."""

    feeds: dict[Key, _Feed] = field(default_factory=dict)
    opened: set[Key] = field(default_factory=set)  # contexts that it has opened
    stream: RowStream | None = None
    away: deque[int] = field(default_factory=deque)  # rows of each message not acknowledged
    acknowledged: int = 0  # messages of the stream
    since: float = 0.0  # last progress, or when it got something to do

    @property
    def busy(self) -> bool:
        """Whether it has to take rows, of sequences that left too."""
        return bool(self.feeds or self.away)


class RowFeeds:
    """Feeds by drafter and sequence. tell: runs a function on the device thread and feeds its
    result to the loop."""

    def __init__(
        self,
        worker: Worker[EngineCore],
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Callable[[], Sequence[Told]]], None],
    ) -> None:
        self._worker, self._loop, self._tell = worker, loop, tell
        self._fed: defaultdict[int, _Fed] = defaultdict(_Fed)  # by drafter
        config, width = worker.engine.config, worker.engine.feature_width
        self._patience_s = max(PATIENCE_S, config.drafter_patience_s)
        # rows; those of a language model have no bytes
        self._most = min(max(AWAY_BYTES // max(2 * width, 1), BULK_ROWS), config.push_queue_rows)

    def opened(self, drafter: int, key: Key) -> None:
        """Starts sending: the drafter has opened this context."""
        fed = self._fed[drafter]
        fed.opened.add(key)
        if key in fed.feeds:
            if not fed.away:  # else opening is no progress
                fed.since = time.monotonic()
            self._go_on(fed)

    def send(self, asked: SendRows, sink: DrafterAddress) -> None:
        """Feeds rows start .. stop - 1; extends a running feed of the same sequence."""
        fed, key = self._fed[asked.drafter], (asked.sequence, asked.epoch)
        if fed.stream is None:
            fed.stream = RowStream(
                self._worker,
                sink,
                self._loop,
                lambda stream, ack: self._tell(lambda: self._came(asked.drafter, stream, ack)),
                lambda stream, why: self._tell(lambda: self._lost(asked.drafter, stream, why)),
            )
        if not fed.busy:
            fed.since = time.monotonic()
        feed = fed.feeds.get(key)
        if feed is None:
            fed.feeds[key] = _Feed(asked.start, asked.stop)
        else:
            feed.stop = max(feed.stop, asked.stop)
        self._go_on(fed)

    def close(self, drafter: int, key: Key) -> None:
        """Ends the feed of a sequence. Its rows that are on their way stay there."""
        if (fed := self._fed.get(drafter)) is not None:
            fed.opened.discard(key)
            fed.feeds.pop(key, None)

    def forget(self, drafter: int) -> None:
        """Ends the stream and all feeds of a lost drafter; rows on their way are dropped."""
        fed = self._fed.pop(drafter, _Fed())
        if fed.stream is not None:
            fed.stream.close()
        self._drop(fed)

    def _drop(self, fed: _Fed) -> None:
        """Counts the rows of a stream that is no more, and forgets it."""
        if away := sum(fed.away):
            dropped = self._worker.metrics.dropped
            dropped.labels(kind="feature_rows", reason="unacknowledged").inc(away)
        fed.away.clear()
        fed.stream, fed.acknowledged = None, 0

    def end(self) -> None:
        """Ends every stream; called behind the last turn."""
        for drafter in list(self._fed):
            self.forget(drafter)

    def overdue_at(self) -> float | None:
        """When the first drafter is overdue, in monotonic seconds; None without a busy one."""
        since = (fed.since for fed in self._fed.values() if fed.busy)
        return min((each + self._patience_s for each in since), default=None)

    def overdue(self, now: float) -> list[DrafterLost]:
        """Drafters that take no rows for too long."""
        return [
            DrafterLost(drafter, "lost: it takes no rows")
            for drafter, fed in self._fed.items()
            if fed.busy and now >= fed.since + self._patience_s
        ]

    def _go_on(self, fed: _Fed) -> None:
        if fed.stream is None:
            return
        room = self._most - sum(fed.away)
        for key, feed in [each for each in fed.feeds.items() if each[0] in fed.opened]:
            while feed.next < feed.stop and room > 0:
                last = min(feed.next + BULK_ROWS, feed.stop)
                run = self._read(Cursor(*key, 0, last + 1), feed.next)
                if run is None:  # no rows are kept: it has no drafts
                    del fed.feeds[key]
                    break
                fed.stream.push(run)
                fed.away.append(last - feed.next)
                room -= fed.away[-1]
                feed.next = last

    def _read(self, cursor: Cursor, start: int) -> FeatureRun | None:
        try:
            return self._worker.engine.features(cursor, start)
        except Exception as error:  # out of memory, say
            log.error("rows.not_read", sequence=cursor.sequence, exc_info=error)
            return None

    def _came(
        self, drafter: int, stream: RowStream, ack: features_pb2.FeatureAck
    ) -> Sequence[Told]:
        fed, ready = self._fed.get(drafter), list[Told]()
        if fed is None or fed.stream is not stream:
            return ()
        done = min(ack.chunks, stream.sent)  # a drafter may be wrong about what it took
        if fed.acknowledged < done:
            fed.since = time.monotonic()
        while fed.acknowledged < done:
            fed.away.popleft()
            fed.acknowledged += 1
        for mark in ack.watermarks:
            key = (mark.sequence, mark.epoch)
            feed = fed.feeds.get(key)
            if feed is not None and (held := min(mark.rows, feed.next)) >= feed.stop:
                del fed.feeds[key]
                ready.append(DrafterReady(drafter, *key, held))
        if ack.refused:  # no drafts until a plan names another drafter
            dropped = self._worker.metrics.dropped
            dropped.labels(kind="feature_chunk", reason="refused_by_sink").inc(len(ack.refused))
            for ref in ack.refused:
                fed.feeds.pop((ref.sequence, ref.epoch), None)
        self._go_on(fed)
        return ready

    def _lost(self, drafter: int, stream: RowStream, why: str) -> Sequence[Told]:
        fed = self._fed.get(drafter)
        if fed is None or fed.stream is not stream:
            return ()
        self._drop(fed)
        return [DrafterLost(drafter, f"lost: {why}")] if fed.feeds else ()
