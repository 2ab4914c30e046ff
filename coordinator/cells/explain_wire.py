"""Explained rounds as messages, for operators: one request's, as they are settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from coordinator.lanes.explain import Explain
from coordinator.queue.admission import Admission
from coordinator.watching.explaining import Told, told
from dspark.errors import InvalidRequest
from dspark.wire.v1 import control_pb2

LOOK_S = 0.25  # longest time until the end of a request is noticed


async def explanations(
    admission: Admission, explain: Explain, request: control_pb2.ExplainRequest
) -> AsyncIterator[control_pb2.RoundExplanation]:
    """Until the request ends, or so many rounds were told."""
    name, left = request.request_id, request.rounds or -1
    if admission.find(name) is None:
        raise InvalidRequest("request_id", "no running request has this id")
    with explain.request(name) as watch:
        while left:
            runs = admission.find(name) is not None
            parts = watch.parts()
            for part in parts[:left] if left > 0 else parts:
                yield write(told(part))
                left -= 1
            if not runs:
                return
            if not parts:
                try:
                    await asyncio.wait_for(watch.bell.heard(), LOOK_S)
                except TimeoutError:
                    continue


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
        why=cast("control_pb2.PrefixEnd", f"PREFIX_END_{found.why.name}"),
        price=found.price,
        sequences=sums.sequences,
        step_drafted=sums.drafted,
        step_verified=sums.verified,
        step_tokens=sums.tokens,
        step_committed=sums.committed,
        budget=sums.budget,
        plain=sums.plain,
        round_ms=1e3 * sums.round_s,
        draft_ms=1e3 * sums.draft_s,
        draft_pass_ms=1e3 * sums.draft_pass_s,
        verify_ms=1e3 * sums.verify_s,
        verify_pass_ms=1e3 * sums.verify_pass_s,
        late=sums.late,
    )
