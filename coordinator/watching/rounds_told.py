"""What is told of a round to people and operators: plain nouns."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
    VOID = "void"  # verified, behind a rejected one
    UNVERIFIED = "unverified"
    CUT = "cut"  # accepted, behind the end of the answer


class Why(enum.Enum):
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
    why: Why
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


def fate_of(slot: int, accepted: int, judged: int, kept: int) -> Fate:
    if slot < accepted:
        return Fate.ACCEPTED if slot < kept else Fate.CUT
    if slot >= judged:
        return Fate.UNVERIFIED
    return Fate.REJECTED if slot == accepted else Fate.VOID
