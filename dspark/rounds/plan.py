"""What the coordinator plans for the rounds to come, and the prefixes that follow from it. Pure numbers.

A plan is made of finished rounds and meets the next order, never one that is out (invariant R2): its terms are frozen
when the order of a block leaves, so they know nothing of that block. Invariant R3, no peeking: slot j is verified as
long as every slot up to it reaches the price, which looks at confidences up to j alone; then the pass is cut by rank to
a cap that was frozen, too. It is never cut down to a number that is a function of its own total.

Symbols: n sequences, k slots of the longest block.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from dspark.rounds.survival import Floats, Ints, survival

NO_CAP = 1 << 30


class PlanKind(enum.IntEnum):
    """How a prefix follows from a block."""

    OFF = 0  # nothing is drafted
    FIXED = 1  # everything that was drafted
    THRESHOLD = 2  # the slots before the first whose own confidence is below `price`
    PRICE = 3  # the slots whose weighted survival is at least `price`


class Terms(NamedTuple):
    """What holds for one block; frozen when its order is sent."""

    kind: PlanKind
    slots: int = 0  # drafted
    price: float = 0.0
    weight: float = 1.0  # what a token of the sequence is worth
    cap: int = NO_CAP  # drafted tokens of the whole pass


PLAIN = Terms(PlanKind.OFF)


class SequencePlan(NamedTuple):
    """What differs for one sequence."""

    terms: Terms | None = None  # instead of the plan's
    drafter: int | None = None  # who shall draft for it: 0 nobody, None whoever does
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """For all rounds that begin while it is in force. It takes the place of the one before, in whole, and has no expiry
    but the session's lease."""

    number: int = 0
    terms: Terms = PLAIN
    cohorts: int = 1  # or 2, by the lowest bit of a sequence's number
    window: int = 0  # rounds that may begin beyond the last acknowledged one; 0 is lockstep
    draft_s: float = 0.0  # seconds a draft is expected to take, hops included
    sequences: Mapping[int, SequencePlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.cohorts not in (1, 2):
            raise ValueError(f"cohorts is {self.cohorts}, and must be 1 or 2")
        if self.window < 0:
            raise ValueError(f"window is {self.window}, and must be 0 or more")

    def of(self, sequence: int) -> SequencePlan:
        return self.sequences.get(sequence, EVERYBODY)

    def terms_of(self, sequence: int) -> Terms:
        """For the next order of this sequence."""
        return self.of(sequence).terms or self.terms

    def paused(self, sequence: int) -> bool:
        return self.of(sequence).paused

    def cohort(self, sequence: int) -> int:
        return sequence & (self.cohorts - 1)


EVERYBODY = SequencePlan()


def prefixes(blocks: Sequence[Sequence[float]], terms: Sequence[Terms]) -> list[int]:
    """[n] slots to verify of each block, given the confidences of its slots; blocks may be empty."""
    longest = max(map(len, blocks), default=0)
    if longest == 0:
        return [0] * len(blocks)
    lengths = np.fromiter(map(len, blocks), np.int64, len(blocks))
    drafted = np.arange(longest) < lengths[:, None]
    confidence = np.zeros((len(blocks), longest))
    confidence[drafted] = np.fromiter(chain.from_iterable(blocks), np.float64, int(lengths.sum()))
    alive = survival(confidence, lengths)
    # Nearly always one and the same: whoever has no terms of its own has the plan's.
    own = terms[:1] if all(each is terms[0] for each in terms) else terms
    worth = alive * np.array([each.weight for each in own])[:, None]
    kind = np.array([int(each.kind) for each in own])[:, None]
    price = np.array([each.price for each in own])[:, None]
    passes = np.where(kind == PlanKind.THRESHOLD, confidence >= price, worth >= price)  # of NaN neither holds
    passes |= (kind == PlanKind.FIXED) | ((kind == PlanKind.THRESHOLD) & (price <= 0.0))
    passes &= (kind != PlanKind.OFF) & drafted
    chosen: Ints = np.logical_and.accumulate(passes, axis=1).sum(axis=1)
    return list(map(int, _capped(worth, chosen, min(each.cap for each in own))))


def _capped(worth: Floats, chosen: Ints, cap: int) -> Ints:
    """[n] of these slots the `cap` that rank first: by worth, then the earlier slot, then the lower row.

    Along a row worth never rises, so what is left of it is a prefix; whether a slot is left depends on what ranks
    before it alone, and nothing behind it in its own row does.
    """
    if int(chosen.sum()) <= cap:
        return chosen
    rows, slots = np.nonzero(np.arange(worth.shape[1]) < chosen[:, None])
    first = np.lexsort((rows, slots, -worth[rows, slots]))[:cap]
    return np.bincount(rows[first], minlength=len(chosen)).astype(np.int64)
