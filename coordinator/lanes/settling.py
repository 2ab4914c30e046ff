"""Applying the verdicts of one cohort: commit, then show, then count.

Invariant 6, committed before shown: `Answer.take` appends before the outlet sees anything, and `write` has made it last
before anybody can read from the outlet. A verdict for a sequence that has ended or moved on since is dropped and
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from coordinator.answers.answer import Piece, Round
from coordinator.answers.outlet import Overfull
from coordinator.lanes.ports import Declined
from coordinator.lanes.round_counts import RoundCounts
from coordinator.lanes.rounds import Turn
from coordinator.lanes.sequence import Event, State
from coordinator.lanes.track import Track
from dspark.errors import Overloaded, PeerError
from dspark.runtime.telemetry import Metrics
from dspark.types import RefusalReason, Verdict

log = structlog.get_logger("dspark.settling")


class Owner(Protocol):
    """Whoever placed a sequence in a lane."""

    def ended(self, track: Track, error: Exception | None) -> None:
        """It is over: complete (`track.end` says how) or by an error."""

    def turned_away(self, track: Track) -> None:
        """The verifier has no pages for it now."""

    def preempted(self, track: Track) -> None:
        """It gave its pages to an older one and begins again."""

    def moved(self, track: Track) -> None:
        """Its verifier will leave, and it goes to another one."""

    def orphaned(self, track: Track) -> None:
        """It needs a verifier that takes it in anew."""


class Settling:
    """The last step of a round."""

    def __init__(
        self,
        owner: Owner,
        orphan: Callable[[Track], None],
        make_room: Callable[[], None],
        vocab_size: int,
        metrics: Metrics,
        write: Callable[[], None] = lambda: None,
    ) -> None:
        self._owner, self._orphan, self._make_room = owner, orphan, make_room
        self._vocab_size, self._metrics, self._write = vocab_size, metrics, write
        self.counts = RoundCounts(metrics)

    def settle(self, turns: Sequence[Turn], verdicts: Sequence[Verdict | Declined], at: float) -> int:
        """Returns the tokens committed. at: clock time."""
        committed = 0
        for turn, verdict in zip(turns, verdicts, strict=True):
            track = turn.track
            stands = turn.stands(State.VERIFYING)
            if not stands or verdict.cursor != turn.cursor:
                self._metrics.dropped.labels(kind="verdict", reason="stale").inc()
                self._metrics.draft_wasted_tokens.labels(reason="stale").inc(len(turn.block.token_ids))
                if stands:
                    self._orphan(track)  # the verifier speaks of another moment
            elif isinstance(verdict, Declined):
                self._declined(turn, verdict)
            elif not verdict.accepted <= verdict.judged <= turn.prefix or verdict.next_token >= self._vocab_size:
                self._owner.ended(track, PeerError("the verifier sent a verdict that fits no prefix"))
            elif track.request.law.logprobs is not None and len(verdict.logprobs) != verdict.accepted + 1:
                self._owner.ended(track, PeerError("the verifier sent a verdict without its log-probabilities"))
            else:
                committed += self._guarded(turn, verdict, at)
        if any(isinstance(each, Declined) and each.why is RefusalReason.OUT_OF_PAGES for each in verdicts):
            self._make_room()  # one leaves, whatever the number refused: it held many pages, and each wants one
        self._write()  # before this turn of the loop is over, so before anybody is shown what was committed in it
        return committed

    def show_first(self, track: Track, piece: Piece, at: float) -> None:
        """The commit that a prefill brings."""
        self._show(track, piece, at)
        self._write()

    def _show(self, track: Track, piece: Piece, at: float) -> None:
        """Hands a commit to the client; whoever does not read is cut."""
        before, track.tally.shown = track.tally.shown, at
        self.counts.shown(len(piece.tokens), at - before if before is not None else None)
        track.end = piece.end
        try:
            track.outlet.push(piece)
        except Overfull:
            self._metrics.slow_readers_cut.inc()
            track.end = None
            self._owner.ended(track, Overloaded("the client reads too slowly", retry_after_s=1.0))
            return
        if piece.end is not None:
            self._owner.ended(track, None)

    def _guarded(self, turn: Turn, verdict: Verdict, at: float) -> int:
        try:
            return self._judged(turn, verdict, at)
        except Exception as error:  # a bug: this request fails and its neighbours do not notice
            log.error("settling.failed", sequence=turn.cursor.sequence, round=turn.cursor.round, exc_info=error)
            self._owner.ended(turn.track, PeerError("a commit failed; see the coordinator's log"))
            return 0

    def _judged(self, turn: Turn, verdict: Verdict, at: float) -> int:
        track = turn.track
        track.sequence.apply(Event.JUDGED)
        piece = track.answer.take(
            (*turn.block.token_ids[: verdict.accepted], verdict.next_token),
            verdict.logprobs,
            round=Round(len(turn.block.token_ids), verdict.judged, verdict.accepted),
        )
        accepted = min(verdict.accepted, len(piece.tokens))
        track.tally.round(verified=verdict.judged, accepted=accepted, committed=len(piece.tokens))
        self.counts.judged(
            len(turn.block.token_ids),
            verdict.judged,
            verdict.accepted,
            accepted,
            turn.empty_because,
            label=track.request.label,
            committed=len(piece.tokens),
            confidence=turn.block.confidence[: verdict.judged],
        )
        self._show(track, piece, at)
        return len(piece.tokens)

    def _declined(self, turn: Turn, declined: Declined) -> None:
        self._metrics.refusals.labels(reason=declined.why.name.lower()).inc()
        self._metrics.draft_wasted_tokens.labels(reason="declined").inc(len(turn.block.token_ids))
        if declined.why is RefusalReason.INVALID and turn.prefix:
            turn.track.sequence.apply(Event.DECLINED)  # a bad draft; the anchor goes again without one
        elif declined.why is RefusalReason.OUT_OF_PAGES:
            turn.track.sequence.apply(Event.DECLINED)  # it stands where it stood; somebody makes room
        elif declined.why is RefusalReason.INVALID:
            self._owner.ended(turn.track, PeerError(f"the verifier refused a sequence: {declined.message}"))
        else:
            turn.track.refused = declined
            self._orphan(turn.track)
