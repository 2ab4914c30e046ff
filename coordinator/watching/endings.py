"""The last answers that ended, in numbers: a bounded ring that is always kept, for who asks what became of a request.

It holds no token and no text. Rounds one by one are told while an answer runs (`explaining`), to whoever watches it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import structlog

from coordinator.answers.answer import RequestStats
from coordinator.lanes.request_state import RequestState
from dspark.errors import Expired, Overloaded, RequestCancelled, Unavailable
from dspark.runtime.telemetry import ENDS, Metrics

log = structlog.get_logger("dspark.admission")

KEPT = 256  # answers


@dataclass(frozen=True, slots=True)
class Ended:
    """One answer."""

    request: str  # as the cell calls it: a tenant's as TENANT/ID
    index: int  # which of the n answers
    outcome: str  # finish reason, or what went wrong
    error: str  # in a sentence; empty when it ended well
    policy: str
    rule: str
    verifier: str  # replica that had it last; empty when it never left the queue
    drafter: str  # likewise
    prompt_tokens: int
    tokens: int
    stats: RequestStats


class Endings:
    """Tells metrics and log of every answer that ends, and keeps the last ones."""

    def __init__(self, metrics: Metrics, most: int = KEPT) -> None:
        self._metrics = metrics
        self._ring: deque[Ended] = deque(maxlen=most)

    @property
    def most(self) -> int:
        return self._ring.maxlen or 0

    def add(self, state: RequestState, error: Exception | None) -> str:
        """Call it once the stats have their end. Returns the outcome."""
        outcome = outcome_of(state, error)
        self._count(state, outcome)
        log.info(
            "request.ended",
            request=state.request.id,
            sequence=state.sequence.number,
            outcome=outcome,
            tokens=state.answer.log.answered,
            rounds=state.stats.rounds,
        )
        self._ring.append(
            Ended(
                request=state.request.id,
                index=state.answer.index,
                outcome=outcome,
                error="" if error is None else str(error),
                policy=str(state.request.policy),
                rule=state.request.params.rule.name.lower(),
                verifier=state.last_verifier,
                drafter=state.last_drafter,
                prompt_tokens=len(state.request.prompt),
                tokens=state.answer.log.answered,
                stats=state.stats,
            )
        )
        return outcome

    def of(self, request_id: str) -> list[Ended]:
        """The answers of the newest request with this id, in their order; empty when it is not known any more."""
        told = [each for each in self._ring if each.request == request_id]
        newest = [each for each in told if each.stats.arrived == told[-1].stats.arrived]
        return sorted(newest, key=lambda each: each.index)

    def last(self, count: int) -> list[Ended]:
        """The newest first."""
        return [self._ring[-1 - back] for back in range(min(count, len(self._ring)))]

    def _count(self, state: RequestState, outcome: str) -> None:
        metrics, stats = self._metrics, state.stats
        metrics.requests.labels(outcome=outcome).inc()
        if (ended := "abort" if outcome == "cancelled" else outcome) in ENDS:
            metrics.request_success.labels(finished_reason=ended).inc()
        metrics.e2e_request_latency.observe(stats.total_s())
        if stats.first is not None:
            metrics.time_to_first_token.observe(stats.first_token_s())
            metrics.request_prefill_time.observe(stats.first_token_s() - stats.queue_s())
            metrics.request_decode_time.observe(stats.total_s() - stats.first_token_s())
        metrics.request_prompt_tokens.observe(len(state.request.prompt))
        metrics.request_generation_tokens.observe(state.answer.log.answered)
        if state.answer.log.answered > 1:
            metrics.request_time_per_output_token.observe(stats.per_token_s(state.answer.log.answered))


def outcome_of(state: RequestState, error: Exception | None) -> str:
    """How an answer ended, in one word."""
    match error:
        case None:
            return state.end.reason.value if state.end is not None else "unknown"
        case RequestCancelled():
            return "cancelled"
        case Expired():
            return "expired"
        case Overloaded():
            return "slow_reader" if state.stats.placed is not None else "overloaded"
        case Unavailable():
            return "unavailable"
    return "error"
