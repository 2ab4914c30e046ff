"""Feeds kept feature rows to drafters over the bulk stream, a bounded number at a time.

The verifier keeps the rows, so nothing is queued here: a run of rows is read when it may be sent,
and read again if it is lost. All but the `PushListener` methods run in turns (see `round_driver`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from dspark.rounds.events import DrafterLost, DrafterReady, SendRows, Told
from dspark.types import Cursor
from dspark.wire.v1 import features_pb2
from verify_service.batch_runner import FeatureRun
from verify_service.engine_core import EngineCore
from verify_service.feature_push import BULK_ROWS, FeaturePush, Sink

log = structlog.get_logger("dspark.rounds")

AWAY_BYTES = 8 << 20  # most unacknowledged bytes per drafter
# without an acknowledgement, after which a drafter is lost; longer if its blocks may take longer
PATIENCE_S = 5.0

Key = tuple[int, int]  # sequence, epoch


@dataclass(slots=True)
class _Feed:
    drafter: int
    sink: Sink
    next: int  # rows below this one were sent
    stop: int
    held: int  # rows below this one are acknowledged
    since: float  # last progress of this or another feed to the same drafter


class RowFeeds:
    """Feeds by drafter and sequence. tell: runs a function on the device thread and feeds its
    result to the loop."""

    def __init__(
        self,
        engine: EngineCore,
        push: FeaturePush,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Callable[[], Sequence[Told]]], None],
    ) -> None:
        self._engine, self._push, self._loop, self._tell = engine, push, loop, tell
        self._feeds: dict[tuple[int, Key], _Feed] = {}
        self._opened: set[tuple[int, Key]] = set()  # contexts that the drafter has opened
        config = engine.config
        self._patience_s = max(PATIENCE_S, config.drafter_patience_s)
        # rows; half of what the queue to a drafter takes, as rows of a language model have no bytes
        fits = max(AWAY_BYTES // max(2 * engine.feature_width, 1), BULK_ROWS)
        self._most = min(fits, max(config.push_queue_rows // 2, BULK_ROWS))

    def opened(self, drafter: int, key: Key) -> None:
        """Starts sending: the drafter has opened this context."""
        self._opened.add((drafter, key))
        if (feed := self._feeds.get((drafter, key))) is not None:
            feed.since = time.monotonic()
            self._go_on(drafter)

    def send(self, asked: SendRows, sink: Sink) -> None:
        """Feeds rows start .. stop - 1; extends a running feed of the same sequence."""
        at = (asked.drafter, (asked.sequence, asked.epoch))
        feed = self._feeds.get(at)
        if feed is None:
            now = time.monotonic()
            self._feeds[at] = _Feed(asked.drafter, sink, asked.start, asked.stop, asked.start, now)
        else:
            feed.stop = max(feed.stop, asked.stop)
        self._go_on(asked.drafter)

    def close(self, drafter: int, key: Key) -> None:
        """Ends the feed of a sequence."""
        self._opened.discard((drafter, key))
        if self._feeds.pop((drafter, key), None) is not None:
            self._go_on(drafter)

    def forget(self, drafter: int) -> None:
        """Ends all feeds of a lost drafter."""
        self._feeds = {at: feed for at, feed in self._feeds.items() if at[0] != drafter}
        self._opened = {at for at in self._opened if at[0] != drafter}

    def overdue_at(self) -> float | None:
        """When the first feed is overdue, in monotonic seconds; None without feeds."""
        return min((feed.since + self._patience_s for feed in self._feeds.values()), default=None)

    def overdue(self, now: float) -> list[DrafterLost]:
        """Drafters with a feed without progress for too long."""
        late = {
            feed.drafter for feed in self._feeds.values() if now >= feed.since + self._patience_s
        }
        return [DrafterLost(drafter, "lost: it takes no rows") for drafter in late]

    def _go_on(self, drafter: int) -> None:
        mine = [
            (at[1], feed)
            for at, feed in self._feeds.items()
            if at[0] == drafter and at in self._opened
        ]
        room = self._most - sum(feed.next - feed.held for _, feed in mine)
        for key, feed in mine:
            while feed.next < feed.stop and room > 0:
                last = min(feed.next + BULK_ROWS, feed.stop)
                run = self._read(Cursor(*key, 0, last + 1), feed.next)
                if run is None:  # no rows are kept: the sequence has no drafts
                    self._feeds.pop((drafter, key), None)
                    break
                self._loop.call_soon_threadsafe(self._push.push, feed.sink, run)
                room -= last - feed.next
                feed.next = last

    def _read(self, cursor: Cursor, start: int) -> FeatureRun | None:
        try:
            return self._engine.features(cursor, start)
        except Exception as error:  # out of memory, say
            log.error("rows.not_read", sequence=cursor.sequence, exc_info=error)
            return None

    # `PushListener`, called on the event loop.

    def rows_came(self, sink: Sink, ack: features_pb2.FeatureAck) -> None:
        if ack.watermarks or ack.refused:
            marks = [((mark.sequence, mark.epoch), mark.rows) for mark in ack.watermarks]
            refused = [(each.sequence, each.epoch) for each in ack.refused]
            self._tell(lambda: self._came(sink, marks, refused))

    def rows_lost(self, sink: Sink, why: str) -> None:
        self._tell(lambda: self._lost(sink, why))

    def _came(
        self, sink: Sink, marks: Sequence[tuple[Key, int]], refused: Sequence[Key]
    ) -> Sequence[Told]:
        ready: list[Told] = []
        feeds = {key: feed for (_, key), feed in self._feeds.items() if feed.sink == sink}
        if any(key in feeds for key, _ in marks):
            # feeds share the limit, so an acknowledgement is progress for all of them
            now = time.monotonic()
            for each in feeds.values():
                each.since = now
        for key, rows in marks:
            feed = feeds.get(key)
            if feed is None:
                continue
            feed.held = max(feed.held, min(rows, feed.next))
            if feed.held >= feed.stop:
                del self._feeds[feed.drafter, key]
                ready.append(DrafterReady(feed.drafter, *key, feed.held))
        for key in refused:  # no drafts until a plan names another drafter
            if (feed := feeds.get(key)) is not None:
                self._feeds.pop((feed.drafter, key), None)
        for drafter in {feed.drafter for feed in feeds.values()}:
            self._go_on(drafter)
        return ready

    def _lost(self, sink: Sink, why: str) -> Sequence[Told]:
        drafters = {feed.drafter for feed in self._feeds.values() if feed.sink == sink}
        return [DrafterLost(drafter, f"lost: {why}") for drafter in drafters]
