"""What can be done with a lane, and what it would bring: plain rounds, and drafts of every length
in one cohort or two, each by Algorithm 1 over recent blocks.

Options are kept until enough was learned: on a small machine planning takes time from passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coordinator.planning.cost import CostCorrector
from dspark.rounds.survival import Floats, Ints

WINDOW = 384  # recent blocks that plans are made from; the oldest round counts whole
ENOUGH = 32  # blocks of a lane's keys, from which on those of other keys are left out
RENEWED = 0.02  # new blocks over blocks in the window, from which on options are computed anew
MOVED = 0.25  # change of a plain round's seconds from which on they are, too
# Rounds that sending contexts takes beside each round of a try in which few draft: the verifier
# packs them and a drafter reads them beside passes that need all processors, those before, too.
# As passes of the shipped pair on two cores took: a try of two rounds 1.6 rounds more than plain.
SENT = 0.7
CONTEXT_STEP = 128  # tokens of mean context over which a lane's options are kept
MOST_KNOWN = 64  # lanes whose options are kept


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

    def part(self, few: int) -> PlannedLane:
        """The lane in a round in which `few` sequences draft and the others wait for them."""
        more, others = len(self.sequences) - few, self.others
        waiting = others._replace(
            sequences=others.sequences + more,
            tokens=others.tokens + more,
            worth=others.worth + float(self.weight[few:].sum()),
        )
        return replace(
            self, sequences=self.sequences[:few], weight=self.weight[:few], others=waiting
        )


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
    """The options of one verifier's lanes. block: slots of the longest blocks; usual: [b]
    survival of slots before any block was seen; bypass: whether plain rounds are an option."""

    def __init__(self, cost: CostCorrector, block: int, usual: Floats, *, bypass: bool) -> None:
        self._cost, self._block, self._usual, self._bypass = cost, block, usual, bypass
        self._recent: deque[_Remembered] = deque()
        self.blocks = 0  # that are remembered
        # (plain, drafted) options by properties of the lane
        self.known: dict[tuple[object, ...], tuple[PlanOption, list[PlanOption]]] = {}
        # (rate, seconds) of rounds in which few draft, by their number, the lane's and option
        self._parts: dict[tuple[int, int, PlanOption], tuple[float, float]] = {}
        self._ranks: dict[frozenset[Hashable], _Ranked] = {}  # by a lane's keys
        self._news = 0  # blocks since these were cleared
        self._plain = 1.0  # what a plain round took over what was announced, as of then

    def remember(self, keys: Sequence[Hashable], compared: Floats, worth: Floats) -> None:
        """Remembers the blocks of a round, see `_Remembered`."""
        self._recent.append(_Remembered(keys, compared, worth))
        self.blocks += len(keys)
        self._news += len(keys)
        while self.blocks - len(self._recent[0].keys) >= WINDOW:
            self.blocks -= len(self._recent.popleft().keys)

    def renew(self) -> None:
        """Drops all options, so that the next ones are computed anew."""
        self.known.clear()
        self._parts.clear()
        self._ranks.clear()
        self._news, self._plain = 0, self._cost.plain.value

    def of(self, lane: PlannedLane) -> tuple[PlanOption, list[PlanOption]]:
        """(plain rounds, drafts of every length and number of cohorts) for the next plan. A lane
        where one sequence comes and one goes has the same options again."""
        near, worth = lane.context // CONTEXT_STEP, float(lane.weight.sum())
        of = (frozenset(lane.keys), len(lane.sequences), worth, near, lane.cohorts, lane.others)
        moved = abs(self._cost.plain.value - self._plain) > MOVED * self._plain
        due = moved or self._news > RENEWED * min(self.blocks, WINDOW)
        if due or len(self.known) >= MOST_KNOWN:
            self.renew()
        if of not in self.known:
            self.known[of] = self._computed(lane)
        return self.known[of]

    def for_few(self, lane: PlannedLane, few: int, option: PlanOption) -> tuple[float, float]:
        """(rate, seconds) of one round by this option that drafts for few, whose contexts are sent
        first, while the others wait."""
        count = len(lane.sequences)
        if few == count or not option.slots:
            return option.rate, option.seconds
        of = (few, count, option)
        if of not in self._parts:
            found = self._best(lane.part(few), self._ranked(lane), option.slots, option.cohorts)
            at = found.chosen
            sent = 1.0 + SENT
            self._parts[of] = float(found.rates[at]) / sent, float(found.seconds[at]) * sent
        return self._parts[of]

    def prefix_of(self, lane: PlannedLane, option: PlanOption) -> tuple[BestPrefix, float]:
        """Algorithm 1 by an option, and the slots that one of its slots stands for."""
        ranked = self._ranked(lane)
        found = self._best(lane, ranked, option.slots, option.cohorts)
        return found, len(lane.sequences) / ranked.blocks

    def _computed(self, lane: PlannedLane) -> tuple[PlanOption, list[PlanOption]]:
        tokens, worth = lane.without_drafts
        plain_s = self._plain_s(tokens, lane)
        plain = PlanOption(worth / plain_s if self._bypass else 0.0, plain_s, 0, 1, float("inf"))
        ranked, drafted = self._ranked(lane), list[PlanOption]()
        for slots in range(1, self._block + 1):
            for cohorts in [each for each in lane.cohorts if each <= lane.together] or [1]:
                found = self._best(lane, ranked, slots, cohorts)
                rate, seconds = float(found.rates[found.chosen]), float(found.seconds[found.chosen])
                drafted.append(PlanOption(rate, seconds, slots, cohorts, found.price))
        return plain, drafted

    def _best(self, lane: PlannedLane, ranked: _Ranked, slots: int, cohorts: int) -> BestPrefix:
        """Algorithm 1 over blocks of `slots` slots, in `cohorts` cohorts."""
        tokens, worth = lane.without_drafts
        scale = len(lane.sequences) / ranked.blocks
        compared, gained = ranked.among(slots)
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

    def _ranked(self, lane: PlannedLane) -> _Ranked:
        """Slots of recent blocks of the lane's keys, or of all while those are few; usual ones
        before the first block."""
        if not self._recent:
            hoped: Floats = float(lane.weight.mean()) * self._usual[None, :]
            return _Ranked.of(hoped, hoped)
        present = frozenset(lane.keys)
        if present not in self._ranks:
            compared = np.concatenate([each.compared for each in self._recent])
            worth = np.concatenate([each.worth for each in self._recent])
            alike = np.array([key in present for each in self._recent for key in each.keys])
            if alike.sum() >= ENOUGH:
                compared, worth = compared[alike], worth[alike]
            self._ranks[present] = _Ranked.of(compared, worth)
        return self._ranks[present]
