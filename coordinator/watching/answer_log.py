"""The last answers that ended, in numbers: a bounded ring, always kept, that shows how a request
ended.

It holds no token and no text. Single rounds are reported to a request's watches while it runs
(`explaining`).
"""

from __future__ import annotations

import itertools
from collections import deque

import structlog

from coordinator.lanes.request_state import RequestState
from dspark.errors import Expired, Overloaded, RequestCancelled, Unavailable
from dspark.runtime.telemetry import ENDS, Metrics
from dspark.wire.v1.control_pb2 import EndedAnswer

log = structlog.get_logger("dspark.admission")

KEPT = 256  # answers


class AnswerLog:
    """Counts and logs every answer that ends, and keeps the last ones."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # (time of arrival, answer)
        self._ring: deque[tuple[float, EndedAnswer]] = deque(maxlen=KEPT)

    def add(self, state: RequestState, error: Exception | None) -> str:
        """Records an answer, once its stats have their end. Returns the outcome."""
        outcome = outcome_of(state, error)
        self._count(state, outcome)
        log.info(
            "request.ended",
            request=state.request.id,
            sequence=state.sequence.number,
            outcome=outcome,
            tokens=state.answer.length,
            rounds=state.stats.rounds,
        )
        stats = state.stats
        told = EndedAnswer(
            request_id=state.request.id,
            index=state.answer.index,
            outcome=outcome,
            error="" if error is None else str(error),
            policy=str(state.request.policy),
            rule=state.request.params.rule.name.lower(),
            verifier=state.last_verifier,
            drafter=state.last_drafter,
            prompt_tokens=len(state.request.prompt),
            completion_tokens=state.answer.length,
            draft_tokens=stats.drafted,
            verified_histogram=stats.verified_histogram,
            accepted_histogram=stats.acceptance_histogram,
            mean_acceptance_length=stats.mean_acceptance_length,
            queue_ms=1e3 * stats.queue_s(),
            ttft_ms=1e3 * stats.first_token_s() if stats.first is not None else 0.0,
            total_ms=1e3 * stats.total_s(),
        )
        self._ring.append((stats.arrived, told))
        return outcome

    def of(self, request_id: str) -> list[EndedAnswer]:
        """The answers of the newest request with this id, in their order; empty if none is kept."""
        told = [each for each in self._ring if each[1].request_id == request_id]
        return sorted(
            (answer for arrived, answer in told if arrived == told[-1][0]),
            key=lambda each: each.index,
        )

    def last(self, count: int | None) -> list[EndedAnswer]:
        """The last `count` answers that ended, newest first; None: all that are kept."""
        return [answer for _, answer in itertools.islice(reversed(self._ring), count)]

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
        metrics.request_generation_tokens.observe(state.answer.length)
        if (timed := state.answer.since_resumed) > 1:
            metrics.request_time_per_output_token.observe(stats.per_token_s(timed))


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
            return "slow_reader" if state.stats.first is not None else "overloaded"
        case Unavailable():
            return "unavailable"
    return "error"
