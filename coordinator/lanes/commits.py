"""Applies reported rounds one by one: check, commit, show, count.

Invariant 6, committed before shown: `Answer.take` appends to the log before the output queue gets
anything, and the caller makes it durable (`write`) before this turn of the event loop is over, so
before a client can read from that queue. Every report is checked before it is applied: one that no
block and no answer can lead to ends the request, or the sequence goes to another verifier.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from coordinator.answers.answer import CommittedTokens, FirstCommit, Round
from coordinator.lanes.members import Owner
from coordinator.lanes.request_state import LifeEvent, RequestState
from coordinator.lanes.round_learning import JudgedRound, RoundCounts
from dspark.errors import Overloaded, PeerError
from dspark.rounds import control
from dspark.rounds.events import RoundReport
from dspark.runtime.telemetry import Metrics
from dspark.types import ScoredToken

log = structlog.get_logger("dspark.commits")


class Commits:
    """Commits the reported rounds of one lane."""

    def __init__(self, owner: Owner, vocab_size: int, metrics: Metrics) -> None:
        self._owner, self._vocab_size, self._metrics = owner, vocab_size, metrics
        self.counts = RoundCounts(metrics)

    def problem(
        self, state: RequestState, said: RoundReport, logprobs: Sequence[ScoredToken]
    ) -> str | None:
        """What is wrong with a round that is next in order; None if it can be committed."""
        tokens = said.tokens
        if (
            not 0 <= said.accepted <= said.verified <= len(said.confidence)
            or len(tokens) > said.accepted + 1
        ):
            return "a verdict that fits no block"
        if tokens and not (min(tokens) >= 0 and max(tokens) < self._vocab_size):
            return "a token that is not in its vocabulary"
        if state.request.params.logprobs is not None and len(logprobs) != len(tokens):
            return "a token without its log-probability"
        return None

    def begin(
        self, state: RequestState, said: RoundReport, told: control.PassReport, at: float
    ) -> int:
        """Commits what a prefill drew. Returns the number of tokens committed."""
        logprobs = told.logprobs[0] if told.logprobs else ()
        if not state.answer.room:
            # every prefill draws a token; it is dropped where the answer has no room for one
            said, logprobs = said._replace(tokens=()), ()
        started = told.started or control.PrefillStats()
        problem = self.problem(state, said, logprobs)
        asked = state.scores
        scored = started.prompt_logprobs if asked is not None else None
        if asked is not None and (
            scored is None or scored.top_ids.shape != (len(state.request.prompt) - 1, asked)
        ):
            problem = "no log-probabilities of the prompt as they were asked for"
        if problem is not None:
            return self._refuse(state, problem)
        state.sequence.apply(LifeEvent.PREFILLED)
        news = None
        if state.stats.first is None:
            state.stats.first = at
            spared = min(max(started.cached_tokens, 0), len(state.request.prompt))
            news = FirstCommit(state.stats.queue_s(), spared, scored)
        piece = state.answer.take(said.tokens, logprobs, started=news)
        state.shown.add(state.answer.index)
        return self._finish(state, said, piece, at)

    def judged(
        self,
        state: RequestState,
        said: RoundReport,
        logprobs: Sequence[ScoredToken],
        why: str,
        at: float,
    ) -> int:
        """Commits a judged round. why: reason for an empty block. Returns the number of tokens
        committed."""
        problem = self.problem(state, said, logprobs)
        if problem is not None:
            return self._refuse(state, problem)
        made = Round(len(said.confidence), said.verified, said.accepted)
        try:
            state.sequence.apply(LifeEvent.JUDGED)
            piece = state.answer.take(said.tokens, logprobs, round=made)
            accepted = state.stats.round(made, len(piece.tokens))
            self.counts.judged(JudgedRound(said, accepted, why, state.request.label))
            return self._finish(state, said, piece, at)
        except Exception as error:  # a bug: only this request fails
            log.error("commit.failed", sequence=said.sequence, round=said.round, exc_info=error)
            self._owner.ended(state, PeerError("a commit failed; see the coordinator's log"))
            return 0

    def _finish(
        self, state: RequestState, said: RoundReport, piece: CommittedTokens, at: float
    ) -> int:
        """Hands a commit to the client; a client that reads too slowly is cut."""
        count = len(piece.tokens)
        if count != len(said.tokens) or (piece.end is None and count != said.accepted + 1):
            return self._refuse(state, "tokens that its answer has no room for, or too few")
        before, state.stats.shown = state.stats.shown, at
        gap = at - before if before is not None else None
        self.counts.shown(count, gap, state.request.label)
        state.end = piece.end
        try:
            state.sink.push(piece)
        except Overloaded as slow:
            self._metrics.slow_readers_cut.inc()
            state.end = None
            self._owner.ended(state, slow)
            return count
        if piece.end is not None:
            self._owner.ended(state, None)
        return count

    def _refuse(self, state: RequestState, problem: str) -> int:
        self._metrics.dropped.labels(kind="verdict", reason="malformed").inc()
        self._owner.ended(state, PeerError(f"the verifier sent {problem}"))
        return 0
