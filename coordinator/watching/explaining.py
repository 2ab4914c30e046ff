"""Why a reported round went as it did, in numbers and words. Pure; read when somebody asks, never on the way.

A slot's `gain` is what the verifier compared with the plan's price: survival times weight, which holds the request's
weight and what promises of its drafter have been worth.
"""

from __future__ import annotations

import numpy as np

from coordinator.lanes.commits import REASONS
from coordinator.lanes.explain import Part
from coordinator.lanes.reported import Reported
from coordinator.watching.rounds_told import Slot, Sums, Told, Why, fate_of, origins
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import PlanKind, Terms
from dspark.rounds.survival import survival


def sums_of(made: Reported) -> Sums:
    rounds, report = made.rounds, made.report
    timing = report.timing
    late = {each.drafter for each in rounds if each.why_empty in ("late", "drafter lost")}
    return Sums(
        lane=made.lane,
        ended=made.ended,
        sequences=len(rounds),
        drafted=sum(len(each.confidence) for each in rounds),
        verified=sum(each.verified for each in rounds),
        tokens=report.tokens,
        committed=sum(len(each.tokens) for each in rounds),
        plain=made.plan.terms.kind is PlanKind.OFF,
        round_s=timing.round_s,
        draft_s=timing.waited_s,
        draft_pass_s=timing.draft_s,
        verify_s=timing.forward_s,
        verify_pass_s=timing.forward_s,
        late=tuple(filter(None, map(made.name_of, sorted(late)))),
    )


def price(made: Reported) -> float | None:
    """Gain from which on a slot was verified."""
    terms = made.plan.terms
    return terms.price if terms.kind is PlanKind.PRICE and np.isfinite(terms.price) else None


def told(part: Part) -> Told:
    """An answer's part in its round."""
    made, at, kept = part.round, part.at, part.kept
    said, track = made.rounds[at], made.tracks[at]
    terms = made.plan.terms_of(said.sequence)
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
    drafter = made.name_of(said.drafter) if slots else ""
    return Told(
        lane=made.lane,
        sequence=said.sequence,
        choice=track.answer.index,
        round=said.round,
        offset=part.offset,
        policy=str(track.request.policy),
        drafter=drafter,
        empty_because="" if slots else REASONS.get(said.why_empty, "unspecified") if track.speculates else "policy_off",
        asked=terms.slots if drafter else 0,
        slots=slots,
        prefix=said.verified,
        accepted=min(said.accepted, kept),
        tokens=said.tokens[:kept],
        origins=origins(said.accepted, said.verified, kept),
        why=_why(said, terms, part.room),
        price=price(made),
        cohort=sums_of(made),
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
