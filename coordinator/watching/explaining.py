"""Why a reported round went as it did, in numbers and words. Pure; read when somebody asks, never on the way.

A slot's `gain` is what the verifier compared with the plan's price: survival times weight, which holds the request's
weight and what promises of its drafter have been worth.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from coordinator.lanes.commits import REASONS
from coordinator.lanes.conduct import Reported
from coordinator.watching.watch import RoundPart
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import PlanKind, Terms
from dspark.rounds.survival import survival


class Origin(enum.Enum):
    """How a token came to be committed."""

    DRAFTED = "drafted"  # and accepted
    CORRECTED = "corrected"  # the target's, in place of a drafted one
    BONUS = "bonus"  # the target's, behind a prefix that was accepted whole
    PLAIN = "plain"  # the target's, and nothing was verified


class Fate(enum.Enum):
    """What became of a drafted token."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    FORBIDDEN = "forbidden"  # rejected, because the form of the answer forbids it
    VOID = "void"  # verified, behind a rejected one
    UNVERIFIED = "unverified"
    CUT = "cut"  # accepted, behind the end of the answer


class PrefixEnd(enum.Enum):
    """What ended the prefix."""

    NO_DRAFT = "no_draft"
    WHOLE = "whole"  # the block did
    ROOM = "room"  # the answer has no room for more
    FIXED = "fixed"  # the policy's number
    THRESHOLD = "threshold"  # the next slot's confidence is below the policy's
    PRICE = "price"  # the next slot brings less than it costs


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of a block."""

    token: int | None  # None: the verifier told of no token that was not accepted
    confidence: float  # calibrated, corrected by live rounds
    survival: float
    gain: float
    fate: Fate


@dataclass(frozen=True, slots=True)
class Told:
    """One answer's part in one round."""

    lane: str
    sequence: int
    choice: int
    round: int
    offset: int  # index in the answer of the first token committed
    policy: str
    drafter: str  # replica; empty without one
    empty_because: str  # why there was no draft; empty when there was one
    asked: int  # slots asked of the drafter
    slots: tuple[Slot, ...]
    prefix: int  # slots sent to verification
    accepted: int
    tokens: tuple[int, ...]  # committed
    origins: tuple[Origin, ...]  # of them
    forced: tuple[bool, ...]  # of them: whether the form of the answer left nothing else
    why: PrefixEnd
    price: float | None  # None where no curve was in force
    cohort: Sums


@dataclass(frozen=True, slots=True)
class Sums:
    """A cohort's round in numbers. Spans are seconds."""

    lane: str
    ended: float  # clock time
    sequences: int
    drafted: int  # slots
    verified: int  # slots
    tokens: int  # in the packed pass: anchors, prefixes, and prompts that rode along
    committed: int
    plain: bool
    round_s: float
    draft_s: float  # waited for drafts
    draft_pass_s: float  # device time of the slowest drafter that replied
    verify_s: float
    verify_pass_s: float  # device time
    late: tuple[str, ...]  # drafters that were not waited for any longer, or lost


def origins(accepted: int, judged: int, kept: int) -> tuple[Origin, ...]:
    """Of the tokens a round committed: `accepted` of `judged` drafted ones and the target's own, the first `kept`."""
    last = Origin.PLAIN if not judged else Origin.BONUS if accepted == judged else Origin.CORRECTED
    return (*[Origin.DRAFTED] * accepted, last)[:kept]


def fate_of(slot: int, said: RoundReport, kept: int) -> Fate:
    if slot < said.accepted:
        return Fate.ACCEPTED if slot < kept else Fate.CUT
    if slot >= said.verified:
        return Fate.UNVERIFIED
    if slot > said.accepted:
        return Fate.VOID
    return Fate.FORBIDDEN if said.forbidden else Fate.REJECTED


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


def told(part: RoundPart) -> Told:
    """An answer's part in its round."""
    made, at, kept = part.round, part.at, part.kept
    said, state = made.rounds[at], made.states[at]
    terms = made.plan.terms_of(said.sequence)
    confidence = np.asarray(said.confidence, np.float64)[None]
    alive = survival(confidence, np.array([confidence.shape[1]]))[0]
    slots = tuple(
        Slot(
            said.tokens[slot] if slot < min(said.accepted, kept) else None,
            float(sure),
            float(alive[slot]),
            float(alive[slot]) * terms.weight,
            fate_of(slot, said, kept),
        )
        for slot, sure in enumerate(said.confidence)
    )
    drafter = made.name_of(said.drafter) if slots else ""
    return Told(
        lane=made.lane,
        sequence=said.sequence,
        choice=state.answer.index,
        round=said.round,
        offset=part.offset,
        policy=str(state.request.policy),
        drafter=drafter,
        empty_because="" if slots else REASONS.get(said.why_empty, "unspecified") if state.speculates else "policy_off",
        asked=terms.slots if drafter else 0,
        slots=slots,
        prefix=said.verified,
        accepted=min(said.accepted, kept),
        tokens=said.tokens[:kept],
        origins=origins(said.accepted, said.verified, kept),
        forced=(said.forced or (False,) * len(said.tokens))[:kept],
        why=_why(said, terms, part.room),
        price=price(made),
        cohort=sums_of(made),
    )


def _why(said: RoundReport, terms: Terms, room: int) -> PrefixEnd:
    """What ended the prefix."""
    drafted = len(said.confidence)
    if not drafted:
        return PrefixEnd.NO_DRAFT
    if terms.kind is PlanKind.FIXED and said.verified == terms.slots:
        return PrefixEnd.FIXED
    if said.verified >= drafted:
        return PrefixEnd.WHOLE
    if said.verified >= room - 1:
        return PrefixEnd.ROOM
    return PrefixEnd.THRESHOLD if terms.kind is PlanKind.THRESHOLD else PrefixEnd.PRICE
