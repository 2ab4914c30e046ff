"""Explains reported rounds as messages. Pure; made when a watch is read, never while a round runs.

A slot's `gain` is what the verifier compared with the plan's price: survival times weight;
the weight is the request's times the measured worth of its drafter's promises.
"""

from __future__ import annotations

import numpy as np

from coordinator.lanes.watch import CommittedRound, RoundPart
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import BlockTerms, PlanKind
from dspark.rounds.survival import survival
from dspark.wire.v1 import control_pb2 as wire


def origins(accepted: int, judged: int, kept: int) -> list[wire.Origin]:
    """Origins of the tokens that a round committed: `accepted` of `judged` drafted ones and the
    target's own, the first `kept`."""
    own = wire.ORIGIN_BONUS if accepted == judged else wire.ORIGIN_CORRECTED
    last = own if judged else wire.ORIGIN_PLAIN
    return [*[wire.ORIGIN_DRAFTED] * accepted, last][:kept]


def fate_of(slot: int, said: RoundReport, kept: int) -> wire.Fate:
    if slot < said.accepted:
        return wire.FATE_ACCEPTED if slot < kept else wire.FATE_CUT
    if slot >= said.verified:
        return wire.FATE_UNVERIFIED
    if slot > said.accepted:
        return wire.FATE_VOID
    return wire.FATE_FORBIDDEN if said.forbidden else wire.FATE_REJECTED


def step_of(made: CommittedRound) -> wire.RoundExplanation:
    """The fields that are the same for all answers of a cohort."""
    rounds, report = made.rounds, made.report
    timing = report.timing
    late = {each.drafter for each in rounds if each.why_empty in ("late", "drafter lost")}
    return wire.RoundExplanation(
        lane=made.lane,
        price=price(made),
        sequences=len(rounds),
        step_drafted=sum(len(each.confidence) for each in rounds),
        step_verified=sum(each.verified for each in rounds),
        step_tokens=report.tokens,
        step_committed=sum(len(each.tokens) for each in rounds),
        plain=not any(made.plan.terms_of(each.sequence).drafts for each in rounds),
        round_ms=1e3 * timing.round_s,
        draft_ms=1e3 * timing.waited_s,
        draft_pass_ms=1e3 * timing.draft_s,
        verify_pass_ms=1e3 * timing.forward_s,
        late=filter(None, map(made.name_of, sorted(late))),
    )


def price(made: CommittedRound) -> float | None:
    """The gain from which on a slot was verified; None without a finite price."""
    for each in made.rounds:  # a try has terms for those that draft alone
        terms = made.plan.terms_of(each.sequence)
        if terms.kind is PlanKind.PRICE:
            return terms.price if np.isfinite(terms.price) else None
    return None


def told(part: RoundPart) -> wire.RoundExplanation:
    """The explanation of one answer's part in its round."""
    made, at, kept = part.round, part.at, part.kept
    said, state = made.rounds[at], made.states[at]
    terms = made.plan.terms_of(said.sequence)
    confidence = np.asarray(said.confidence, np.float64)[None]
    alive = survival(confidence, np.array([confidence.shape[1]]))[0]
    drafter = made.name_of(said.drafter) if said.confidence else ""
    found = wire.RoundExplanation(
        index=state.answer.index,
        round=said.round,
        offset=part.offset,
        policy=str(state.request.policy),
        drafter=drafter,
        empty_because=made.why_empty[at],
        asked=terms.slots if drafter else 0,
        slots=[
            wire.SlotExplanation(
                token_id=said.tokens[slot] if slot < min(said.accepted, kept) else None,
                confidence=sure,
                survival=alive[slot],
                gain=alive[slot] * terms.weight,
                fate=fate_of(slot, said, kept),
            )
            for slot, sure in enumerate(said.confidence)
        ],
        prefix=said.verified,
        accepted=min(said.accepted, kept),
        token_ids=said.tokens[:kept],
        origins=origins(said.accepted, said.verified, kept),
        forced=(said.forced or (False,) * len(said.tokens))[:kept],
        why=_why(said, terms, part.room),
    )
    found.MergeFrom(step_of(made))
    return found


def _why(said: RoundReport, terms: BlockTerms, room: int) -> wire.PrefixEnd:
    """What ended the prefix."""
    drafted = len(said.confidence)
    if not drafted:
        return wire.PREFIX_END_NO_DRAFT
    if terms.kind is PlanKind.FIXED and said.verified == terms.slots:
        return wire.PREFIX_END_FIXED
    if said.verified >= drafted:
        return wire.PREFIX_END_WHOLE
    if said.verified >= room - 1:
        return wire.PREFIX_END_ROOM
    return wire.PREFIX_END_THRESHOLD if terms.kind is PlanKind.THRESHOLD else wire.PREFIX_END_PRICE
