"""Why a reported round went as it did, in numbers and words. Pure; read when somebody asks, never on the way.

A slot's `gain` is what the verifier compared with the plan's price: survival times weight, which holds the request's
weight and what promises of its drafter have been worth.
"""

from __future__ import annotations

import numpy as np

from coordinator.lanes.commits import REASONS
from coordinator.lanes.reported import Reported
from coordinator.watching.rounds_told import Slot, Sums, Told, Why, fate_of, origins
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import PlanKind, Terms
from dspark.rounds.schedule import survival


def sums_of(settled: Reported) -> Sums:
    rounds, report = settled.rounds, settled.report
    timing = report.timing
    late = {each.drafter for each in rounds if each.why_empty in ("late", "drafter lost")}
    return Sums(
        lane=settled.lane,
        ended=settled.ended,
        sequences=len(rounds),
        drafted=sum(len(each.confidence) for each in rounds),
        verified=sum(each.verified for each in rounds),
        tokens=report.tokens,
        committed=sum(len(each.tokens) for each in rounds),
        budget=None,
        plain=settled.plan.terms.kind is PlanKind.OFF,
        probe=False,
        round_s=timing.round_s,
        draft_s=timing.waited_s,
        draft_pass_s=timing.draft_s,
        verify_s=timing.forward_s,
        verify_pass_s=timing.forward_s,
        late=tuple(filter(None, map(settled.name_of, sorted(late)))),
    )


def price(settled: Reported) -> float | None:
    """Gain from which on a slot was verified."""
    terms = settled.plan.terms
    return terms.price if terms.kind is PlanKind.PRICE and np.isfinite(terms.price) else None


def told(settled: Reported, at: int, offset: int, kept: int, room: int) -> Told:
    """An answer's part: from `offset` on it got `kept` tokens, when it had room for so many."""
    said, track = settled.rounds[at], settled.tracks[at]
    terms = settled.plan.terms_of(said.sequence)
    confidence = np.asarray(said.confidence, np.float64)[None]
    alive = survival(confidence, np.array([confidence.shape[1]]))[0]
    slots = tuple(
        Slot(
            said.tokens[slot] if slot < min(said.accepted, kept) else None,
            float(sure),
            float(alive[slot]),
            float(alive[slot]) * terms.weight,
            fate_of(slot, said.accepted, said.verified, kept),
        )
        for slot, sure in enumerate(said.confidence)
    )
    drafter = settled.name_of(said.drafter) if slots else ""
    return Told(
        lane=settled.lane,
        sequence=said.sequence,
        choice=track.answer.index,
        round=said.round,
        offset=offset,
        policy=str(track.request.policy),
        drafter=drafter,
        empty_because="" if slots else REASONS.get(said.why_empty, "unspecified") if track.speculates else "policy_off",
        asked=terms.slots if drafter else 0,
        slots=slots,
        prefix=said.verified,
        accepted=min(said.accepted, kept),
        tokens=said.tokens[:kept],
        origins=origins(said.accepted, said.verified, kept),
        why=_why(said, terms, room),
        price=price(settled),
        cohort=sums_of(settled),
    )


def _why(said: RoundReport, terms: Terms, room: int) -> Why:
    """What ended the prefix."""
    drafted = len(said.confidence)
    if not drafted:
        return Why.NO_DRAFT
    if terms.kind is PlanKind.FIXED and said.verified == terms.slots:
        return Why.FIXED
    if said.verified >= drafted:
        return Why.WHOLE
    if said.verified >= room - 1:
        return Why.ROOM
    return Why.THRESHOLD if terms.kind is PlanKind.THRESHOLD else Why.PRICE
