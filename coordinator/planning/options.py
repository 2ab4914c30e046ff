"""What can be done with a lane, and what it would bring: plain rounds, and drafts of every length
in one cohort or two, each by Algorithm 1 over recent blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator.planning.cost import CostCorrector
from dspark.rounds.survival import Floats, Ints

WINDOW = 384  # recent blocks that plans are made from; the oldest round counts whole
ENOUGH = 32  # blocks of a lane's keys, from which on those of other keys are left out
EVERY = 8  # plans of a lane that stays as it is by the same options: computing them takes time
CONTEXT_STEP = 128  # tokens of mean context over which a lane's options are kept


class OtherSequences(NamedTuple):
    """Sequences of the same passes whose block lengths this planner does not choose."""

    sequences: int = 0
    tokens: float = 0.0  # in a pass
    slots: int = 0  # of the longest blocks drafted for them
    worth: float = 0.0  # expected weighted tokens of a round
    drafting: int = 0  # sequences among them that have blocks drafted


NOBODY = OtherSequences()


@dataclass(frozen=True, slots=True)
class PlannedLane:
    """The adaptive sequences of the next rounds, and the others in their passes."""

    sequences: Sequence[int]
    keys: Sequence[Hashable]  # [n]
    weight: Floats  # [n]
    context: float
    cohorts: tuple[int, ...] = (1, 2)  # to choose from
    others: OtherSequences = NOBODY

    @property
    def together(self) -> int:
        """Sequences in a pass."""
        return len(self.sequences) + self.others.sequences

    @property
    def without_drafts(self) -> tuple[float, float]:
        """(tokens of a pass, their worth) where only the others have drafts."""
        tokens = len(self.sequences) + self.others.tokens
        return tokens, float(self.weight.sum()) + self.others.worth


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One thing to do with a lane."""

    rate: float  # expected weighted tokens per second
    seconds: float  # of a round
    slots: int
    cohorts: int
    price: float

    def alike(self, other: PlanOption) -> bool:
        return (self.slots, self.cohorts) == (other.slots, other.cohorts)


class BestPrefix(NamedTuple):
    """Algorithm 1 over m slots in descending order."""

    rates: Floats  # [m + 1] expected weighted tokens per second with so many of them
    seconds: Floats  # [m + 1]
    chosen: int
    price: float  # compared value of the last chosen one; infinite without one


def best_prefix(compared: Floats, gained: Floats, worth: float, seconds: Floats) -> BestPrefix:
    """Runs Algorithm 1. compared: [m] what the verifier will compare with the price, descending;
    gained: [m] expected tokens of each; worth: tokens without any; seconds: [m + 1] of a round with
    so many."""
    brought = np.zeros(len(gained) + 1)
    np.cumsum(gained, out=brought[1:])
    rates = (worth + brought) / seconds
    chosen = int(rates.argmax())
    return BestPrefix(
        rates, seconds, chosen, float(compared[chosen - 1]) if chosen else float("inf")
    )


class _Remembered(NamedTuple):
    """Blocks of one round."""

    keys: Sequence[Hashable]  # [n]
    compared: Floats  # [n, b] what the verifier compares
    worth: Floats  # [n, b] in expected tokens


class _Ranked(NamedTuple):
    """Slots of recent blocks in descending order of the value they are compared by, [m] each."""

    blocks: int
    compared: Floats
    gained: Floats
    slot: Ints

    @staticmethod
    def of(compared: Floats, gained: Floats) -> _Ranked:
        """Ranks the slots of [blocks, b] arrays."""
        order = np.argsort(-compared, axis=None, kind="stable")
        return _Ranked(
            len(compared), compared.ravel()[order], gained.ravel()[order], order % compared.shape[1]
        )

    def among(self, slots: int) -> tuple[Floats, Floats]:
        """(compared, gained) of the first `slots` slots of each block."""
        inside = self.slot < slots
        return self.compared[inside], self.gained[inside]


class LaneOptions:
    """The options of one verifier's lane. block: slots of the longest blocks; usual: [b] survival
    of slots before any block was seen; bypass: whether plain rounds are an option."""

    def __init__(self, cost: CostCorrector, block: int, usual: Floats, *, bypass: bool) -> None:
        self._cost, self._block, self._usual, self._bypass = cost, block, usual, bypass
        self._recent: deque[_Remembered] = deque()
        self.blocks = 0  # that are remembered
        self._of: tuple[object, ...] = ()  # properties of the lane that these are the options of
        self._age = 0  # plans
        self._ranked = _Ranked.of(usual[None, :], usual[None, :])
        self._known: tuple[PlanOption, list[PlanOption]] | None = None

    def remember(self, keys: Sequence[Hashable], compared: Floats, worth: Floats) -> None:
        """Remembers the blocks of a round, see `_Remembered`."""
        self._recent.append(_Remembered(keys, compared, worth))
        self.blocks += len(keys)
        while self.blocks - len(self._recent[0].keys) >= WINDOW:
            self.blocks -= len(self._recent.popleft().keys)

    def renew(self) -> None:
        """Drops all options, so that the next ones are computed anew."""
        self._known = None

    def of(self, lane: PlannedLane) -> tuple[PlanOption, list[PlanOption]]:
        """(plain rounds, drafts of every length and number of cohorts) for the next plan."""
        near, worth = lane.context // CONTEXT_STEP, float(lane.weight.sum())
        of = (frozenset(lane.keys), len(lane.sequences), worth, near, lane.cohorts, lane.others)
        self._age += 1
        if self._known is None or of != self._of or self._age >= EVERY:
            self._of, self._age = of, 0
            self._known = self._computed(lane)
        return self._known

    def prefix_of(self, lane: PlannedLane, option: PlanOption) -> tuple[BestPrefix, float]:
        """Algorithm 1 by an option, and the slots that one of its slots stands for."""
        found = self._best(lane, option.slots, option.cohorts)
        return found, len(lane.sequences) / self._ranked.blocks

    def _computed(self, lane: PlannedLane) -> tuple[PlanOption, list[PlanOption]]:
        self._ranked = self._ranks(lane)
        tokens, sure = lane.without_drafts
        plain_s = self._plain_s(tokens, lane)
        plain = PlanOption(sure / plain_s if self._bypass else 0.0, plain_s, 0, 1, float("inf"))
        drafted = list[PlanOption]()
        for slots in range(1, self._block + 1):
            for cohorts in [each for each in lane.cohorts if each <= lane.together] or [1]:
                found = self._best(lane, slots, cohorts)
                rate, seconds = float(found.rates[found.chosen]), float(found.seconds[found.chosen])
                drafted.append(PlanOption(rate, seconds, slots, cohorts, found.price))
        return plain, drafted

    def _best(self, lane: PlannedLane, slots: int, cohorts: int) -> BestPrefix:
        """Algorithm 1 over blocks of `slots` slots, in `cohorts` cohorts."""
        tokens, worth = lane.without_drafts
        scale = len(lane.sequences) / self._ranked.blocks
        compared, gained = self._ranked.among(slots)
        taken = scale * np.arange(len(gained) + 1, dtype=np.float64)
        drafting = len(lane.sequences) + lane.others.drafting
        longest = max(slots, lane.others.slots)
        seconds = self._cost.round_s(
            tokens + taken, lane.context, lane.together, drafting, longest, cohorts
        )
        return best_prefix(compared, scale * gained, worth, seconds)

    def _plain_s(self, tokens: float, lane: PlannedLane) -> float:
        """Seconds of a round in which blocks are drafted for the others only."""
        others = lane.others
        if not others.slots:
            return self._cost.plain_s(lane.together, lane.context)
        seconds = self._cost.round_s(
            np.array([tokens]), lane.context, lane.together, others.drafting, others.slots, 1
        )
        return float(seconds[0])

    def _ranks(self, lane: PlannedLane) -> _Ranked:
        """Slots of recent blocks of the lane's keys, or of all while those are few; usual ones
        before the first block."""
        if not self._recent:
            hoped: Floats = float(lane.weight.mean()) * self._usual[None, :]
            return _Ranked.of(hoped, hoped)
        compared = np.concatenate([each.compared for each in self._recent])
        worth = np.concatenate([each.worth for each in self._recent])
        present = frozenset(lane.keys)
        alike = np.array([key in present for each in self._recent for key in each.keys])
        if alike.sum() >= ENOUGH:
            compared, worth = compared[alike], worth[alike]
        return _Ranked.of(compared, worth)
