"""Which drafter serves a sequence, and whether its context is filled.

A drafter holds soft state only: losing one costs speed, never an answer. A sequence without one goes on with empty
blocks; a drafter that is there (again) is given room, then the rows the verifier kept, and speculation resumes
without a second prefill. Which rows are needed is settled between rounds only, together with the sink of the rows that
follow, so that what is resent and what is pushed meet without a gap; they are asked for behind the round's orders.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog

from coordinator.clock import Clock
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.ports import Declined, DrafterPort, Sink, VerifierPort
from coordinator.lanes.track import Feed, Track
from dspark.rounds.policy import Adaptive
from dspark.runtime.telemetry import Metrics
from dspark.types import Block, Cursor, EmptyReason

log = structlog.get_logger("dspark.feeding")

MISSING_ROUNDS = 3  # rounds in a row without any new row before rows are asked for again
RETRY_S = 0.5  # least time between two attempts for the same sequence
RETRY_MOST_S = 8.0  # rows that never arrive are asked for ever more rarely, up to this
FULL_S = 2.0  # a drafter that had no room is not asked again by anybody for so long
PATIENCE_S = 5.0  # rows that a verifier has not sent in this time are not on their way


class Feeding:
    """The drafters of one lane and their hold on its sequences."""

    def __init__(
        self,
        verifier: VerifierPort,
        load: Counter[DrafterPort],
        clock: Clock,
        metrics: Metrics,
        monitor: Monitor | None = None,
        *,
        patience_s: float = PATIENCE_S,
        silent: Callable[[], bool] = lambda: False,
    ) -> None:
        """`patience_s`: a drafter that neither gives room nor refuses it for so long is let go. `silent`: whether
        the lane goes without drafts, so that nobody who can do without is given a drafter."""
        self._verifier, self._patience_s, self._silent = verifier, patience_s, silent
        self._monitor = monitor if monitor is not None else Monitor(metrics)
        self._load = load  # sequences per drafter, over all lanes
        self._clock = clock
        self._metrics = metrics
        self._drafters: list[DrafterPort] = []
        self._full_until: dict[DrafterPort, float] = {}
        self._leaving: set[DrafterPort] = set()
        self._due: list[tuple[Track, Cursor, DrafterPort, int, str]] = []  # rows to be asked for, from where, why

    @property
    def drafters(self) -> tuple[DrafterPort, ...]:
        return tuple(self._drafters)

    def joined(self, drafter: DrafterPort) -> None:
        self._drafters.append(drafter)

    def left(self, drafter: DrafterPort, tracks: list[Track]) -> None:
        """Its sequences go on at once without it."""
        if drafter in self._drafters:
            self._drafters.remove(drafter)
        self._full_until.pop(drafter, None)
        self._leaving.discard(drafter)
        for track in tracks:
            if track.drafter is drafter:
                self._detach(track)

    def leaves(self, drafter: DrafterPort, leaves: bool) -> None:
        """Whether it gets nobody new; who is with it stays until there is another one."""
        (self._leaving.add if leaves else self._leaving.discard)(drafter)

    def open(self, track: Track) -> Future[Declined | None] | None:
        """Asks the least loaded drafter for room; None when there is nobody to ask or nothing to ask for."""
        if not track.speculates or not self._verifier.facts.projection:
            return None
        if self._goes_without(track):
            return None
        able = self._able(track)
        if not able:
            return None
        drafter = min(able, key=lambda each: (self._load[each], each.facts.name))
        track.drafter, track.feed, track.last_drafter = drafter, Feed.OPENING, drafter.facts.name
        track.missing, track.watermark, track.too_long = 0, 0, False
        track.attach_at = self._clock.time() + RETRY_S
        self._load[drafter] += 1
        cursor = track.sequence.cursor
        future = drafter.open(cursor, track.request.longest, track.request.law)

        def refuse() -> None:
            self._full_until[drafter] = self._clock.time() + FULL_S
            track.attach_at = 0.0  # another drafter may be asked at once
            self.drop(track)

        def overdue() -> None:
            if track.drafter is drafter and track.feed is Feed.OPENING and track.sequence.epoch == cursor.epoch:
                self._metrics.dropped.labels(kind="opened", reason="overdue").inc()
                refuse()
            # Whoever asked may be gone by now. It serves nobody, so it would be the least loaded for ever.
            drafter.close(f"an open was not answered for {self._patience_s:g} s")

        timer = self._clock.call_later(self._patience_s, overdue)

        def answered(done: Future[Any]) -> None:
            timer.cancel()
            refused = not _fine(done)
            if not done.cancelled() and done.exception() is None and isinstance(done.result(), Declined):
                self._metrics.refusals.labels(reason=f"open_{done.result().why.name.lower()}").inc()
            if track.drafter is not drafter or track.sequence.epoch != cursor.epoch or track.sequence.finished:
                self._metrics.dropped.labels(kind="opened", reason="stale").inc()
            elif refused:
                refuse()
            elif track.feed is Feed.OPENING:
                track.feed = Feed.OPENED

        future.add_done_callback(answered)
        return future

    def sink(self, track: Track) -> Sink | None:
        """Where the rows of this round go."""
        if track.drafter is None or track.feed not in (Feed.RESENDING, Feed.FED):
            return None
        return track.drafter.facts.sink

    def prefilling(self, track: Track) -> Sink | None:
        """Where the prompt's rows go: the drafter that has room for them needs no resend."""
        if track.feed is not Feed.OPENED:
            return None
        track.feed = Feed.FED
        return self.sink(track)

    def between_rounds(self, track: Track) -> None:
        """The one moment at which rows are found to be needed."""
        if track.drafter is not None and not self._trusts(track.drafter, track):
            self.drop(track)
        if track.drafter in self._leaving and self._able(track):
            self.drop(track)
            track.attach_at = 0.0
        if track.feed is Feed.NONE:
            if self._clock.time() >= track.attach_at:
                self.open(track)
        elif self._goes_without(track):
            if track.feed is Feed.FED and track.missing:  # what is missing is not asked for, what is new stays
                track.feed, track.rested_from, track.missing = Feed.RESTING, track.watermark, 0
        elif track.feed is Feed.OPENED:
            self._resend(track, 0, "attached")
        elif track.feed is Feed.FED and track.missing >= MISSING_ROUNDS and self._clock.time() >= track.resend_at:
            self._resend(track, track.watermark, "features_missing")

    def rest(self, track: Track) -> None:
        """No draft is near: rows stay with the verifier until `wake`. Call it between rounds."""
        if track.feed is Feed.FED and track.missing == 0:
            track.feed, track.rested_from = Feed.RESTING, track.sequence.cursor.committed_len - 1

    def wake(self, track: Track) -> None:
        """A draft is near: the drafter gets what it missed, and the rows that follow. Call it between rounds."""
        if track.feed is Feed.RESTING:
            self._resend(track, track.rested_from, "rested")

    def reachable(self, track: Track) -> bool:
        """Whether a draft could be asked for now, or as soon as rows on their way have arrived."""
        return (
            track.feed in (Feed.FED, Feed.RESTING, Feed.RESENDING)
            and track.missing < MISSING_ROUNDS
            and track.answer.room >= 2
        )

    def why_not(self, track: Track) -> str | None:
        """Why no draft is asked for, or None when one is."""
        if not track.speculates:
            return "policy_off"
        if track.drafter is None:
            if self._goes_without(track):
                return "bypass"
            distrusted = self._drafters and not any(self._trusts(each, track) for each in self._drafters)
            return "too_long" if track.too_long else "distrusted" if distrusted else "no_drafter"
        if track.feed is not Feed.FED:
            return str(track.feed.value)
        if track.missing >= MISSING_ROUNDS:
            return "features_missing"  # asking would make the whole cohort wait for rows that do not come
        cursor = track.sequence.cursor
        return "drafted_before" if track.drafted == (cursor.epoch, cursor.committed_len) else None

    def noted(self, track: Track, block: Block) -> None:
        """Learns from a block what the drafter has."""
        if block.empty_reason is not EmptyReason.FEATURES_MISSING:
            track.missing, track.resend_wait = 0, RETRY_S
        elif block.watermark > track.watermark:
            track.missing = 1  # rows come, only late
        else:
            track.missing += 1
        track.watermark = block.watermark
        if block.empty_reason is EmptyReason.TOO_LONG:
            track.too_long = True
            self.drop(track)  # its rows would be pushed for nothing
        elif block.empty_reason is EmptyReason.UNKNOWN_SEQUENCE:
            self._detach(track)

    def drop(self, track: Track) -> None:
        """The drafter may forget the sequence."""
        if track.drafter is not None:
            track.drafter.release(track.sequence.cursor)
            self._detach(track)

    def _able(self, track: Track) -> list[DrafterPort]:
        return [drafter for drafter in self._drafters if self._may_serve(drafter, track)]

    def _may_serve(self, drafter: DrafterPort, track: Track) -> bool:
        """Whether it has room as far as is known, blocks for a sequence of this length, and the monitor's trust."""
        reach = drafter.facts.context_length - drafter.facts.block_size
        fits = track.sequence.cursor.committed_len <= reach and drafter not in self._leaving
        fits = fits and track.request.drafter in ("", drafter.facts.name)
        return self._clock.time() >= self._full_until.get(drafter, 0.0) and fits and self._trusts(drafter, track)

    def _goes_without(self, track: Track) -> bool:
        return self._silent() and isinstance(track.request.policy, Adaptive)

    def _trusts(self, drafter: DrafterPort, track: Track) -> bool:
        return self._monitor.trusts(drafter.facts.fingerprint, track.request.law)

    def _detach(self, track: Track) -> None:
        if track.drafter is not None:
            self._load[track.drafter] -= 1
            track.drafter, track.feed = None, Feed.NONE

    def order_rows(self) -> None:
        """Asks for the rows that are due. Call it when a round's orders have left: rows are many, and would be first.

        The verifier sends what it holds by the time; what the round adds travels on its own, to the same sink.
        """
        due, self._due = self._due, []
        for track, cursor, drafter, start, reason in due:
            if self._awaits(track, cursor, drafter):
                self._metrics.resends.labels(reason=reason).inc()
                self._order(track, cursor, drafter, start)

    def _resend(self, track: Track, start: int, reason: str) -> None:
        drafter, cursor = track.drafter, track.sequence.cursor
        assert drafter is not None
        track.feed, track.missing = Feed.RESENDING, 0
        track.resend_at = self._clock.time() + track.resend_wait
        track.resend_wait = min(2 * track.resend_wait, RETRY_MOST_S)
        tell = log.debug if reason == "rested" else log.info
        tell("sequence.resend", sequence=cursor.sequence, round=cursor.round, reason=reason, start=start)
        self._due.append((track, cursor, drafter, start, reason))

    def _order(self, track: Track, cursor: Cursor, drafter: DrafterPort, start: int) -> None:
        future = self._verifier.resend(cursor, drafter.facts.sink, start)

        def failed() -> None:
            """Drafts will not be asked for; after a while the rows are asked for again."""
            track.feed, track.missing, track.watermark = Feed.FED, MISSING_ROUNDS, start

        def overdue() -> None:
            if self._awaits(track, cursor, drafter):
                self._metrics.dropped.labels(kind="resent", reason="overdue").inc()
                failed()

        timer = self._clock.call_later(PATIENCE_S, overdue)

        def answered(done: Future[Any]) -> None:
            timer.cancel()
            fine = _fine(done)
            awaited = track.drafter is drafter and track.feed in (Feed.RESENDING, Feed.FED)
            if not awaited or track.sequence.epoch != cursor.epoch or track.sequence.finished:
                self._metrics.dropped.labels(kind="resent", reason="stale").inc()
            elif fine:
                track.feed, track.missing = Feed.FED, 0  # late or not, they are there
            else:
                failed()

        future.add_done_callback(answered)

    @staticmethod
    def _awaits(track: Track, cursor: Cursor, drafter: DrafterPort) -> bool:
        """Whether the rows that were due at this cursor still are."""
        same = track.drafter is drafter and track.sequence.epoch == cursor.epoch
        return same and track.feed is Feed.RESENDING and not track.sequence.finished


def _fine(done: Future[Any]) -> bool:
    """Whether a command was carried out; retrieves its exception, so that none goes unheard."""
    return not done.cancelled() and done.exception() is None and not isinstance(done.result(), Declined)
