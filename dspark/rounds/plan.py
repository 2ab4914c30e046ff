"""The coordinator's plan for the rounds to come, and the prefixes that follow from it. Pure.

A plan is made from finished rounds and applies to the next order, never to one already sent
(invariant R2): its terms are frozen when the order of a block is sent, so they do not depend on
that block. Invariant R3, no peeking: slot j is verified if every slot up to it reaches the price,
which depends on confidences up to j alone; then the pass is cut by rank to a cap that is frozen
too. It is never cut to a number that is a function of its own total.

Symbols: n sequences.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NO_CAP = 1 << 30
MAX_SLOTS = 64  # of the longest block


class PlanKind(enum.IntEnum):
    """How a prefix follows from a block."""

    OFF = 0  # nothing is drafted
    FIXED = 1  # everything that was drafted
    THRESHOLD = 2  # the slots before the first whose own confidence is below `price`
    PRICE = 3  # the slots whose weighted survival is at least `price`


OFF, FIXED, THRESHOLD, PRICE = PlanKind  # by name, as those of `state`


class BlockTerms(NamedTuple):
    """The terms of one block, frozen when its order is sent."""

    kind: PlanKind
    slots: int = 0  # drafted
    price: float = 0.0
    weight: float = 1.0  # what a token of the sequence is worth
    cap: int = NO_CAP  # drafted tokens of the whole pass

    @property
    def drafts(self) -> bool:
        """Whether a block is ordered."""
        return self.kind is not OFF and self.slots > 0


PLAIN = BlockTerms(OFF)


class SequencePlan(NamedTuple):
    """The part of a plan that differs for one sequence."""

    terms: BlockTerms | None = None  # instead of the plan's
    drafter: int | None = None  # the drafter to use; 0: none, None: no change


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of all rounds that begin while it is in force. It replaces the one before as a
    whole, and expires with the session's lease alone."""

    terms: BlockTerms = PLAIN
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

    def terms_of(self, sequence: int) -> BlockTerms:
        """Terms of the next order of this sequence."""
        return self.of(sequence).terms or self.terms

    def cohort(self, sequence: int) -> int:
        return sequence & (self.cohorts - 1)


EVERYBODY = SequencePlan()


def prefixes(blocks: Sequence[Sequence[float]], terms: Sequence[BlockTerms]) -> list[int]:
    """[n] slots to verify of each block, given the confidences of its slots; blocks may be empty.

    Without arrays: a pass has a few hundred slots at most, and numpy is slow to start on a core
    that was idle.
    """
    chosen = [_chosen(block, own) for block, own in zip(blocks, terms, strict=True)]
    cap = min((own.cap for own in terms), default=NO_CAP)
    if sum(chosen) <= cap:
        return chosen
    kept = [block[:length] for block, length in zip(blocks, chosen, strict=True)]
    return _capped(
        [
            [own.weight * alive for alive in _alive(block)]
            for block, own in zip(kept, terms, strict=True)
        ],
        cap,
    )


def _alive(block: Sequence[float]) -> Iterator[float]:
    """Chance that each slot of one block is still alive; see `survival`."""
    alive = 1.0
    for confidence in block:
        alive *= min(confidence, 1.0) if confidence > 0.0 else 0.0  # NaN is not above 0
        yield alive


def _chosen(block: Sequence[float], terms: BlockTerms) -> int:
    kind, price, weight = terms.kind, terms.price, terms.weight
    if kind is OFF:
        return 0
    if kind is PRICE:
        for slot, alive in enumerate(_alive(block)):
            if not weight * alive >= price:
                return slot
    elif kind is THRESHOLD and price > 0.0:
        for slot, confidence in enumerate(block):
            if not confidence >= price:
                return slot
    return len(block)


def _capped(worth: Sequence[Sequence[float]], cap: int) -> list[int]:
    """[n] slots left of each row when the `cap` that rank first stay: by worth, then the earlier
    slot, then the lower row.

    Worth never rises along a row, so the slots left are a prefix. Whether a slot is left depends on
    the slots that rank before it alone, and no later slot of its row does.
    """
    ranked = sorted(
        (-each, slot, row) for row, own in enumerate(worth) for slot, each in enumerate(own)
    )
    left = Counter(row for _, _, row in ranked[:cap])
    return [left[row] for row in range(len(worth))]
