"""Plans the rounds of one lane: how many slots are drafted, the price of a slot, how many cohorts.

Algorithm 1 over recent blocks: their slots in descending order of what the verifier will compare,
cut where expected tokens per second are highest, for every length of blocks, for one cohort and for
two. The last slot taken sets the price. Drafting nothing is always among the candidates: a draft is
paid before any slot of it is judged, so drafted slots alone cannot show that drafts do not pay.
What is never tried is never measured, so by a keyed hash some rounds draft nevertheless or go
without, and some draft whole blocks. Out of plain rounds a few sequences draft for all: each of
them has to be sent its context first, and the try lasts until it was.

Invariant 2, no peeking: everything in a plan is older than any block that it applies to. So steps
may be measured stairs and all sizes may be searched.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from coordinator.planning.acceptance import AcceptanceEstimator
from coordinator.planning.cost import CostCorrector
from dspark.rounds.plan import PLAIN, Plan, PlanKind, SequencePlan, Terms
from dspark.rounds.survival import Floats, Ints

WINDOW = 384  # recent blocks that plans are made from; the oldest round counts whole
WARM_UP = 32  # blocks before it is decided whether drafts pay
STAYS = 1.01  # factor by which another plan must be better than the one in force ...
BEGINS = 1.03  # ... and drafts than none: drafters have to receive every context first
EXPLORE = 0.004  # share of expected tokens that trying may cost
PLAINLY = 0.3  # part of that for trying plain rounds: their seconds change rarely
# part of it, out of plain rounds, for whole blocks, and for the likeliest ones, once it is based on
# so many blocks
EITHER, SETTLED = 0.5, WINDOW // 2
MOST_EXPLORED = 1 / 16  # largest share of plans that try one alternative
# Plans that try the same, at least: a round is measured only behind another one of its kind. When
# the first round is reported, the verifier is at the next one already.
IN_A_ROW = 2
WAITED = 16  # most plans of a try whose feature rows are on their way
# sequences that a try out of plain rounds drafts for: so many of a kind, one in so many of all
LEAST_TRYING, TRYING = 2, 4
RENEWED = 0.02  # new blocks over blocks in the window, from which on options are computed anew
PLAN = 1 / 16  # blocks that a plan counts as towards RENEWED: seconds are learned without blocks
MOVED = 0.1  # change of a plain round's seconds from which on they are, too
CONTEXT_STEP = 128  # tokens of mean context over which a lane's options are kept
MOST_KNOWN = 64  # lanes whose options are kept
CURVE_POINTS = 40  # most points of the expected rate by slots verified


@dataclass(frozen=True, slots=True)
class FinishedPass:
    """One reported pass."""

    keys: Sequence[Hashable]  # [n] drafter and bucket of each sequence
    confidence: Floats  # [n, k] of drafted slots, NaN beyond each block; k is 0 in a plain round
    verified: Ints  # [n]
    accepted: Ints  # [n]
    weight: Floats  # [n] what a token of each sequence is worth
    context: float  # mean committed length
    tokens: int  # in the pass, without those of prompts
    prefill_tokens: int  # of prompts in the same pass
    forward_s: float
    round_s: float  # from one report of these sequences to the next
    draft_s: float = 0.0  # of the drafter's pass
    labels: Floats | None = None  # [n, k, 2], see `AcceptanceEstimator`
    alone: bool = True  # no other cohort takes turns with it
    drafted: bool = False  # whether sequences had blocks whose terms are this planner's


class _Remembered(NamedTuple):
    """Blocks of one round."""

    keys: Sequence[Hashable]  # [n]
    compared: Floats  # [n, b] what the verifier compares
    worth: Floats  # [n, b] in expected tokens


class Others(NamedTuple):
    """Sequences of the same passes whose block lengths this planner does not choose."""

    sequences: int = 0
    tokens: float = 0.0  # in a pass
    slots: int = 0  # of the longest blocks drafted for them
    worth: float = 0.0  # expected weighted tokens of a round
    drafting: int = 0  # sequences among them that have blocks drafted


NOBODY = Others()


class Walk(NamedTuple):
    """Algorithm 1 over m slots in descending order."""

    rates: Floats  # [m + 1] expected weighted tokens per second with so many of them
    seconds: Floats  # [m + 1]
    chosen: int
    price: float  # compared value of the last chosen one; infinite without one


def walk(compared: Floats, gained: Floats, worth: float, seconds: Floats) -> Walk:
    """Runs Algorithm 1. compared: [m] what the verifier will compare with the price, descending;
    gained: [m] expected tokens of each; worth: tokens without any; seconds: [m + 1] of a round with
    so many."""
    brought = np.zeros(len(gained) + 1)
    np.cumsum(gained, out=brought[1:])
    rates = (worth + brought) / seconds
    chosen = int(rates.argmax())
    return Walk(rates, seconds, chosen, float(compared[chosen - 1]) if chosen else float("inf"))


@dataclass(frozen=True, slots=True)
class PlannedLane:
    """The adaptive sequences of the next rounds, and the others in their passes."""

    sequences: Sequence[int]
    keys: Sequence[Hashable]  # [n]
    weight: Floats  # [n]
    context: float
    cohorts: tuple[int, ...] = (1, 2)  # to choose from
    others: Others = NOBODY


@dataclass(frozen=True, slots=True)
class _Option:
    rate: float  # expected weighted tokens per second
    seconds: float  # of a round
    slots: int
    cohorts: int
    price: float

    def alike(self, other: _Option) -> bool:
        return (self.slots, self.cohorts) == (other.slots, other.cohorts)


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


def _few(lane: PlannedLane) -> list[int]:
    """[f] places of the sequences that a try out of plain rounds drafts for."""
    alike, few, more = Counter[Hashable](), list[int](), list[int]()
    for place, key in enumerate(lane.keys):
        alike[key] += 1
        (few if alike[key] <= LEAST_TRYING else more).append(place)
    return few + more[: max(-(-len(lane.keys) // TRYING) - len(few), 0)]


def _without_drafts(lane: PlannedLane) -> tuple[float, float]:
    """(tokens of a pass, their worth) where only the others have drafts."""
    count, others = len(lane.sequences), lane.others
    return count + others.tokens, float(lane.weight.sum()) + others.worth


class Planner:
    """The planner of one lane: `learn` takes every finished pass, `next` returns the next plan."""

    def __init__(
        self, cost: CostCorrector, slots: int, *, explore: float = EXPLORE, bypass: bool = True
    ) -> None:
        """bypass: whether a lane may go without drafts where they do not pay."""
        self.cost, self.acceptance = cost, AcceptanceEstimator(slots)
        self.block, self._explore, self._bypass = slots, explore, bypass
        self._recent: deque[_Remembered] = deque()
        self._blocks = 0
        self._number = 0
        self._last = _Option(0.0, 1.0, slots, 1, 0.0)
        self._lane: PlannedLane | None = None  # as of the last plan
        # (plain, drafted) options by properties of the lane
        self._known: dict[tuple[object, ...], tuple[_Option, list[_Option]]] = {}
        # (rate, seconds) of tries by few of a lane, by their number, the lane's and option
        self._tries: dict[tuple[int, int, _Option], tuple[float, float]] = {}
        self._ranks: dict[frozenset[Hashable], _Ranked] = {}  # recent slots, by a lane's keys
        self._news = 0.0  # blocks since these were cleared, and parts of one for plans
        self._plain = 1.0  # what a plain round took over what was announced, as of then
        self._drafted: bool | None = None  # whether the last pass was of drafted blocks
        self._tried: _Option | None = None  # by the last plan
        self._tried_for = 0  # plans in a row
        self._met = False  # whether a pass of its kind was seen since
        self._draws = (1.0, 0.0)  # a plan whose draw is between these begins no try

    def learn(self, done: FinishedPass) -> None:
        count, width = done.confidence.shape
        again, self._drafted = self._drafted is (width > 0), width > 0
        if self._tried is not None:
            self._met = self._met or done.drafted is (self._tried.slots > 0)
        if again and not done.prefill_tokens:
            if width:
                self.cost.observe_drafted(done.tokens, done.context, count, done.forward_s)
                if done.alone:
                    self.cost.hop.add(done.round_s - done.forward_s - done.draft_s)
            elif done.alone:
                self.cost.observe_plain(done.tokens, done.context, count, done.round_s)
        drafted = (
            np.flatnonzero(~np.isnan(done.confidence).all(axis=1))
            if width
            else np.zeros(0, np.int64)
        )
        if len(drafted):
            self.cost.observe_draft(len(drafted), width, done.draft_s)
            self.acceptance.observe(
                done.keys, done.confidence, done.verified, done.accepted, done.labels
            )
            self._remember(
                [done.keys[row] for row in drafted.tolist()],
                done.confidence[drafted],
                done.weight[drafted],
            )

    def _remember(self, keys: Sequence[Hashable], confidence: Floats, weight: Floats) -> None:
        """Remembers a round's survivals as whole blocks; slots not drafted get the usual
        confidence."""
        width = min(confidence.shape[1], self.block)
        own = np.full((len(keys), self.block), np.nan)
        own[:, :width] = confidence[:, :width]
        own = np.clip(np.where(np.isnan(own), self.acceptance.usual(), own), 0.0, 1.0)
        by_key = {
            key: (self.acceptance.ratios(key), self.acceptance.trust(key)) for key in set(keys)
        }
        ratios = np.stack([by_key[key][0] for key in keys])
        trust = np.array([by_key[key][1] for key in keys])
        compared = np.cumprod(own, axis=1) * (weight * trust)[:, None]
        worth = np.cumprod(np.minimum(own * ratios, 1.0), axis=1) * weight[:, None]
        self._recent.append(_Remembered(keys, compared, worth))
        self._blocks += len(own)
        self._news += len(own)
        while self._blocks - len(self._recent[0].keys) >= WINDOW:
            self._blocks -= len(self._recent.popleft().keys)

    def stands(self, context: float) -> bool:
        """Whether the last plan is the next one, too, without computing it: where its lane, now of
        this mean context, goes without drafts. If so, counts as a plan."""
        lane, number = self._lane, self._number + 1
        if lane is None or self._last.slots or lane.others.drafting or self._tried is not None:
            return False
        near, least, most = context // CONTEXT_STEP, *self._draws
        if near != lane.context // CONTEXT_STEP or self._due(PLAN):
            return False
        if not least <= keyed(lane.sequences[0], number) <= most:
            return False
        self._number, self._news = number, self._news + PLAN
        return True

    def next(self, lane: PlannedLane) -> Plan:
        self._number, self._lane = self._number + 1, lane if len(lane.sequences) else None
        if not len(lane.sequences):
            return Plan(self._number)
        plain, drafted = self._renewed(lane)
        best = max((plain, *drafted), key=lambda option: option.rate)
        kept = next((each for each in (plain, *drafted) if each.alike(self._last)), best)
        needed = BEGINS if best.slots and not kept.slots else STAYS
        self._last = kept if best.rate < needed * kept.rate else best
        chosen = self._last
        # A few plans fill no pipeline: what is tried keeps the cohorts that are in force.
        able = [each for each in drafted if each.cohorts == chosen.cohorts] or drafted
        whole = max(
            (each for each in able if each.slots == self.block), key=lambda option: option.rate
        )
        if self._blocks < WARM_UP:
            return self._plan(lane, whole)
        other = plain if chosen.slots else max(able, key=lambda option: option.rate)
        few = range(len(lane.sequences)) if chosen.slots else _few(lane)
        self._tried = self._goes_on((plain, *drafted)) or self._begun(lane, len(few), whole, other)
        if self._tried is None:
            return self._plan(lane, chosen)
        self._tried_for += 1
        return self._plan(lane, self._tried, few)

    def _goes_on(self, options: Sequence[_Option]) -> _Option | None:
        """The option that is being tried, unless its try is over."""
        tried, times = self._tried, self._tried_for
        if tried is None or times >= (IN_A_ROW if self._met else WAITED):
            return None
        return next((each for each in options if each.alike(tried)), None)

    def renew(self) -> None:
        """Drops kept options: seconds of drafts changed, so the next plan computes them anew."""
        self._known.clear()
        self._tries.clear()
        self._ranks.clear()
        self._draws = 1.0, 0.0

    @property
    def home(self) -> tuple[int, int]:
        """(slots, cohorts) of the option thought best; a few plans try another one."""
        return self._last.slots, self._last.cohorts

    def _begun(self, lane: PlannedLane, few: int, whole: _Option, other: _Option) -> _Option | None:
        """The alternative that this plan begins to try, by a keyed number; None for none."""
        self._tried_for, self._met = 0, False
        drawn = keyed(lane.sequences[0], self._number)
        either = EITHER if self._blocks >= SETTLED else 1.0
        for_whole, for_other = (1.0, PLAINLY) if self._last.slots else (either, either)
        least = for_whole * self._share(lane, few, whole) / IN_A_ROW
        share = for_other * self._share(lane, few, other) / IN_A_ROW if other.rate else 0.0
        self._draws = least, 1.0 - share
        return whole if drawn < least else other if drawn > 1.0 - share else None

    def _share(self, lane: PlannedLane, few: int, option: _Option) -> float:
        """Share of plans that try this option instead: more for one that is nearly as good."""
        rate, seconds = self._trying(lane, few, option)
        lost = (1.0 - rate / self._last.rate) * seconds / self._last.seconds
        if MOST_EXPLORED * lost <= self._explore:
            return MOST_EXPLORED if self._explore > 0.0 else 0.0
        return self._explore / lost

    def _trying(self, lane: PlannedLane, few: int, option: _Option) -> tuple[float, float]:
        """(rate, seconds) of one round by this option that drafts for few while the others wait."""
        count = len(lane.sequences)
        if few == count or not option.slots:
            return option.rate, option.seconds
        of = (few, count, option)
        if of not in self._tries:
            more, others = count - few, lane.others
            waiting = others._replace(
                sequences=others.sequences + more,
                tokens=others.tokens + more,
                worth=others.worth + float(lane.weight[few:].sum()),
            )
            fed = replace(
                lane, sequences=lane.sequences[:few], weight=lane.weight[:few], others=waiting
            )
            ranked = self._ranked(lane)
            found = self._walk(fed, ranked, option.slots, option.cohorts)
            at = found.chosen
            self._tries[of] = float(found.rates[at]), float(found.seconds[at])
        return self._tries[of]

    def _due(self, more: float) -> bool:
        """Whether so much was learned, and `more`, that options have to be computed anew."""
        moved = abs(self.cost.plain.value - self._plain) > MOVED * self._plain
        return moved or self._news + more > RENEWED * min(self._blocks, WINDOW)

    def _renewed(self, lane: PlannedLane) -> tuple[_Option, list[_Option]]:
        """`_options`, computed only when needed: on a small machine planning takes time from
        passes. A lane where one sequence comes and one goes has the same options again."""
        near, worth = lane.context // CONTEXT_STEP, float(lane.weight.sum())
        of = (frozenset(lane.keys), len(lane.sequences), worth, near, lane.cohorts, lane.others)
        if self._due(PLAN) or len(self._known) >= MOST_KNOWN:
            self.renew()
            self._news, self._plain = 0.0, self.cost.plain.value
        else:
            self._news += PLAN
        if of not in self._known:
            self._known[of] = self._options(lane)
        return self._known[of]

    def _options(self, lane: PlannedLane) -> tuple[_Option, list[_Option]]:
        tokens, worth = _without_drafts(lane)
        plain_s = self._plain_s(tokens, lane)
        plain = _Option(worth / plain_s if self._bypass else 0.0, plain_s, 0, 1, float("inf"))
        ranked = self._ranked(lane)
        together = len(lane.sequences) + lane.others.sequences
        drafted = []
        for slots in range(1, self.block + 1):
            for cohorts in [each for each in lane.cohorts if each <= together] or [1]:
                found = self._walk(lane, ranked, slots, cohorts)
                rate, seconds = float(found.rates[found.chosen]), float(found.seconds[found.chosen])
                drafted.append(_Option(rate, seconds, slots, cohorts, found.price))
        return plain, drafted

    def _walk(self, lane: PlannedLane, ranked: _Ranked, slots: int, cohorts: int) -> Walk:
        """Algorithm 1 over blocks of `slots` slots, in `cohorts` cohorts."""
        tokens, worth = _without_drafts(lane)
        scale = len(lane.sequences) / ranked.blocks
        compared, gained = ranked.among(slots)
        taken = scale * np.arange(len(gained) + 1, dtype=np.float64)
        together, longest = (
            len(lane.sequences) + lane.others.sequences,
            max(slots, lane.others.slots),
        )
        drafting = len(lane.sequences) + lane.others.drafting
        seconds = self.cost.round_s(
            tokens + taken, lane.context, together, drafting, longest, cohorts
        )
        return walk(compared, scale * gained, worth, seconds)

    @property
    def curve(self) -> tuple[list[tuple[float, float]], float] | None:
        """((slots verified, expected tokens per second) thinned out, slots chosen), for blocks of
        the length in force; None without drafts in force."""
        if self._lane is None or not self._last.slots:
            return None
        ranked = self._ranked(self._lane)
        found = self._walk(self._lane, ranked, self._last.slots, self._last.cohorts)
        scale = len(self._lane.sequences) / ranked.blocks
        step = max(-(-len(found.rates) // CURVE_POINTS), 1)
        shown = sorted({*range(0, len(found.rates), step), found.chosen, len(found.rates) - 1})
        return [(scale * size, float(found.rates[size])) for size in shown], scale * found.chosen

    def _plain_s(self, tokens: float, lane: PlannedLane) -> float:
        """Seconds of a round in which blocks are drafted for the others only."""
        others, together = lane.others, len(lane.sequences) + lane.others.sequences
        if not others.slots:
            return self.cost.plain_s(together, lane.context)
        seconds = self.cost.round_s(
            np.array([tokens]), lane.context, together, others.drafting, others.slots, 1
        )
        return float(seconds[0])

    def _ranked(self, lane: PlannedLane) -> _Ranked:
        """Slots of recent blocks of the lane's keys, or of all while those are few; assumed ones
        before the first block."""
        if not self._recent:
            usual = self.acceptance.usual()
            hoped: Floats = float(lane.weight.mean()) * np.cumprod(usual, dtype=np.float64)[None, :]
            return _Ranked.of(hoped, hoped)
        present = frozenset(lane.keys)
        if present not in self._ranks:
            compared = np.concatenate([each.compared for each in self._recent])
            worth = np.concatenate([each.worth for each in self._recent])
            alike = np.array([key in present for each in self._recent for key in each.keys])
            if alike.sum() >= WARM_UP:
                compared, worth = compared[alike], worth[alike]
            self._ranks[present] = _Ranked.of(compared, worth)
        return self._ranks[present]

    def _plan(self, lane: PlannedLane, chosen: _Option, few: Sequence[int] | None = None) -> Plan:
        """few: places of the sequences that draft; None: all."""
        if chosen.slots == 0:
            return Plan(self._number)
        trust = {key: self.acceptance.trust(key) for key in set(lane.keys)}
        weights = [float(w) * trust[key] for w, key in zip(lane.weight, lane.keys, strict=True)]
        terms = Terms(PlanKind.PRICE, chosen.slots, chosen.price, weights[0])
        every = PLAIN if few is not None and len(few) < len(weights) else terms
        sequences: Mapping[int, SequencePlan] = {
            lane.sequences[place]: SequencePlan(terms._replace(weight=weights[place]))
            for place in (range(len(weights)) if few is None else few)
            if every is PLAIN or weights[place] != weights[0]
        }
        drafting = (len(weights) if few is None else len(few)) / chosen.cohorts
        draft_s = self.cost.draft_s(drafting, chosen.slots) + self.cost.hop.value
        return Plan(self._number, every, chosen.cohorts, draft_s=draft_s, sequences=sequences)


_MIX, _MASK = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB), (1 << 64) - 1


def keyed(sequence: int, number: int) -> float:
    """A number in [0, 1), a function of both arguments alone: splitmix64."""
    mixed = (sequence * _MIX[0] + number * _MIX[1] + _MIX[2]) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * _MIX[1]) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * _MIX[2]) & _MASK
    return float(mixed >> 11) * 2.0**-53
