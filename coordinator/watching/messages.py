"""Explained rounds and ended answers as messages, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import cast

from coordinator.watching.endings import Ended, Endings
from coordinator.watching.explaining import Told, told
from coordinator.watching.watch import Explain
from dspark.errors import InvalidRequest
from dspark.wire.v1 import control_pb2

LOOK_S = 0.25  # longest time until the end of a request is noticed


async def explanations(
    runs: Callable[[str], bool], explain: Explain, request: control_pb2.ExplainRequest
) -> AsyncIterator[control_pb2.RoundExplanation]:
    """Until the request ends, or so many rounds were told. runs: whether a request of this name does."""
    name, left = request.request_id, request.rounds or -1
    if not runs(name):
        raise InvalidRequest("request_id", "no running request has this id")
    with explain.request(name) as watch:
        while left:
            goes_on = runs(name)
            parts = watch.parts()
            for part in parts[:left] if left > 0 else parts:
                yield write(told(part))
                left -= 1
            if not goes_on:
                return
            if not parts:
                try:
                    await asyncio.wait_for(watch.wakeup.heard(), LOOK_S)
                except TimeoutError:
                    continue


def ended_answers(endings: Endings, request: control_pb2.GetEndedRequest) -> control_pb2.GetEndedReply:
    """Of one request, or the newest of all."""
    found = endings.of(request.request_id) if request.request_id else endings.last(request.most or endings.most)
    return control_pb2.GetEndedReply(answers=map(_write_ended, found), kept=endings.most)


def _write_ended(ended: Ended) -> control_pb2.EndedAnswer:
    stats = ended.stats
    return control_pb2.EndedAnswer(
        request_id=ended.request,
        index=ended.index,
        outcome=ended.outcome,
        error=ended.error,
        policy=ended.policy,
        rule=ended.rule,
        verifier=ended.verifier,
        drafter=ended.drafter,
        prompt_tokens=ended.prompt_tokens,
        completion_tokens=ended.tokens,
        draft_tokens=stats.drafted,
        verified_histogram=stats.verified_histogram,
        accepted_histogram=stats.acceptance_histogram,
        mean_acceptance_length=stats.mean_acceptance_length,
        queue_ms=1e3 * stats.queue_s(),
        ttft_ms=1e3 * stats.first_token_s() if stats.first is not None else 0.0,
        total_ms=1e3 * stats.total_s(),
    )


def write(found: Told) -> control_pb2.RoundExplanation:
    """Enumerations go by name, so that a new one cannot be mistaken for another."""
    sums = found.cohort
    return control_pb2.RoundExplanation(
        lane=found.lane,
        index=found.choice,
        round=found.round,
        offset=found.offset,
        policy=found.policy,
        drafter=found.drafter,
        empty_because=found.empty_because,
        asked=found.asked,
        slots=[
            control_pb2.SlotExplanation(
                token_id=slot.token,
                confidence=slot.confidence,
                survival=slot.survival,
                gain=slot.gain,
                fate=cast("control_pb2.Fate", f"FATE_{slot.fate.name}"),
            )
            for slot in found.slots
        ],
        prefix=found.prefix,
        accepted=found.accepted,
        token_ids=found.tokens,
        origins=[cast("control_pb2.Origin", f"ORIGIN_{origin.name}") for origin in found.origins],
        forced=found.forced,
        why=cast("control_pb2.PrefixEnd", f"PREFIX_END_{found.why.name}"),
        price=found.price,
        sequences=sums.sequences,
        step_drafted=sums.drafted,
        step_verified=sums.verified,
        step_tokens=sums.tokens,
        step_committed=sums.committed,
        plain=sums.plain,
        round_ms=1e3 * sums.round_s,
        draft_ms=1e3 * sums.draft_s,
        draft_pass_ms=1e3 * sums.draft_pass_s,
        verify_ms=1e3 * sums.verify_s,
        verify_pass_ms=1e3 * sums.verify_pass_s,
        late=sums.late,
    )
