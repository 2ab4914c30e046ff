"""Plans the rounds of one lane: how many slots are drafted, what one has to promise to be verified, how many cohorts.

Algorithm 1 over what recent blocks promised: their slots in descending order of what the verifier will compare, taken
as long as expected tokens per second grow, for every length of blocks, for one cohort and for two. Where it stops is
the price. Drafting nothing is always among the candidates: a draft is paid before any slot of it is judged, so nobody
who looks at drafted slots could find that drafts do not pay. What is not drafted says nothing of itself, so by a keyed
hash some rounds draft nevertheless, and some draft whole blocks.

Invariant 2, no peeking: everything in a plan is older than any block that it meets. So steps may be measured stairs and
all sizes may be searched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coordinator.planning.acceptance import AcceptanceEstimator
from coordinator.planning.cost import CostCorrector
from coordinator.scheduling.evidence import keyed
from dspark.rounds.plan import NO_CAP, PLAIN, Plan, PlanKind, SequencePlan, Terms
from dspark.rounds.schedule import Floats, Ints

WINDOW = 192  # blocks that stand for those to come; a round of more counts whole
WARM_UP = 32  # blocks before there is an opinion on whether drafts pay
STAYS = 1.01  # by which another plan has to be better than the one in force
EXPLORE = 0.005  # share of tokens that trying something may cost, by what is known
MOST_EXPLORED = 0.25  # of plans


@dataclass(frozen=True, slots=True)
class Finished:
    """One pass, as its report says it."""

    keys: Sequence[Hashable]  # [n] drafter and bucket of each sequence
    confidence: Floats  # [n, k] of drafted slots, NaN beyond each block; k is 0 in a plain round
    verified: Ints  # [n]
    accepted: Ints  # [n]
    weight: Floats  # [n] what a token of each sequence is worth
    context: float  # mean committed length
    tokens: int  # in the pass
    prefill_tokens: int  # of them of prompts
    forward_s: float
    round_s: float  # from one report of these sequences to the next
    draft_s: float = 0.0  # of the drafter's pass
    labels: Floats | None = None  # [n, k, 2], see `AcceptanceEstimator`
    alone: bool = True  # no other cohort takes turns with it


class Others(NamedTuple):
    """Sequences of the same passes whose lengths are not this planner's to choose."""

    sequences: int = 0
    tokens: float = 0.0  # in a pass
    slots: int = 0  # of the longest blocks drafted for them
    worth: float = 0.0  # expected weighted tokens of a round


NOBODY = Others()


@dataclass(frozen=True, slots=True)
class Lane:
    """Who takes part in the rounds to come."""

    sequences: Sequence[int]
    keys: Sequence[Hashable]  # [n]
    weight: Floats  # [n]
    context: float
    window: int = 2
    most_tokens: int = NO_CAP  # of a pass
    cohorts: tuple[int, ...] = (1, 2)  # to choose from
    others: Others = NOBODY


@dataclass(frozen=True, slots=True)
class _Option:
    rate: float  # expected weighted tokens per second
    seconds: float  # of a round
    slots: int
    cohorts: int
    price: float


class Planner:
    """Of one lane. Tell it of every finished pass, ask it for the next plan."""

    def __init__(self, cost: CostCorrector, slots: int, *, explore: float = EXPLORE, bypass: bool = True) -> None:
        """bypass: whether a lane may go without drafts where they do not pay."""
        self.cost, self.acceptance = cost, AcceptanceEstimator(slots)
        self.block, self._explore, self._bypass = slots, explore, bypass
        self._recent: deque[tuple[Floats, Floats]] = deque()  # (what the verifier compares, what it is worth), [n, b]
        self._blocks = 0
        self._number = 0
        self._last = _Option(0.0, 1.0, slots, 1, 0.0)

    def learn(self, done: Finished) -> None:
        count, width = done.confidence.shape
        alone = done.alone
        if not done.prefill_tokens and width == 0 and alone:
            self.cost.observe_plain(done.tokens, done.context, count, done.round_s)
        elif not done.prefill_tokens and width:
            self.cost.observe_drafted(done.tokens, done.context, count, done.forward_s)
            if alone:
                self.cost.hop.add(done.round_s - done.forward_s - done.draft_s)
        drafted = np.flatnonzero(~np.isnan(done.confidence).all(axis=1)) if width else np.zeros(0, np.int64)
        if len(drafted):
            self.cost.observe_draft(len(drafted), width, done.draft_s)
            self.acceptance.observe(done.keys, done.confidence, done.verified, done.accepted, done.labels)
            self._remember([done.keys[row] for row in drafted.tolist()], done.confidence[drafted], done.weight[drafted])

    def _remember(self, keys: Sequence[Hashable], confidence: Floats, weight: Floats) -> None:
        """Survivals of a round, of whole blocks: slots that were not drafted are taken for usual ones."""
        width = min(confidence.shape[1], self.block)
        own = np.full((len(keys), self.block), np.nan)
        own[:, :width] = confidence[:, :width]
        own = np.clip(np.where(np.isnan(own), self.acceptance.usual(), own), 0.0, 1.0)
        by_key = {key: (self.acceptance.ratios(key), self.acceptance.trust(key)) for key in set(keys)}
        ratios = np.stack([by_key[key][0] for key in keys])
        trust = np.array([by_key[key][1] for key in keys])
        compared = np.cumprod(own, axis=1) * (weight * trust)[:, None]
        worth = np.cumprod(np.minimum(own * ratios, 1.0), axis=1) * weight[:, None]
        self._recent.append((compared, worth))
        self._blocks += len(own)
        while self._blocks - len(self._recent[0][0]) >= WINDOW:
            self._blocks -= len(self._recent.popleft()[0])

    def next(self, lane: Lane) -> Plan:
        self._number += 1
        if not len(lane.sequences):
            return Plan(self._number, PLAIN, 1, lane.window)
        plain, drafted = self._options(lane)
        best = max((plain, *drafted), key=lambda option: option.rate)
        kept = next((each for each in (plain, *drafted) if self._same(each)), best)
        self._last = kept if best.rate < STAYS * kept.rate else best
        chosen = self._last
        likely = max(drafted, key=lambda option: option.rate)
        whole = max((each for each in drafted if each.slots == self.block), key=lambda option: option.rate)
        drawn = self._drawn(lane.sequences[0])
        if self._blocks < WARM_UP or drawn < self._share(whole):
            return self._plan(lane, whole)
        if chosen.slots == 0 and drawn > 1.0 - self._share(likely):
            return self._plan(lane, likely)
        return self._plan(lane, chosen)

    @property
    def home(self) -> tuple[int, int]:
        """(slots, cohorts) of what is thought best; single plans try something else."""
        return self._last.slots, self._last.cohorts

    def _drawn(self, sequence: int) -> float:
        """[0, 1), keyed: whether this plan tries something."""
        return float(keyed(np.array([sequence], np.uint64), np.array([self._number], np.uint64))[0])

    def _share(self, option: _Option) -> float:
        """Of plans that try this one instead: what is nearly as good costs little to try."""
        lost = (1.0 - option.rate / self._last.rate) * option.seconds / self._last.seconds
        if MOST_EXPLORED * lost <= self._explore:
            return MOST_EXPLORED if self._explore > 0.0 else 0.0
        return self._explore / lost

    def _same(self, option: _Option) -> bool:
        return (option.slots, option.cohorts) == (self._last.slots, self._last.cohorts)

    def _options(self, lane: Lane) -> tuple[_Option, list[_Option]]:
        count, others = len(lane.sequences), lane.others
        worth = float(lane.weight.sum()) + others.worth
        together, tokens = count + others.sequences, count + others.tokens
        plain_s = self._plain_s(tokens, lane)
        plain = _Option(worth / plain_s if self._bypass else 0.0, plain_s, 0, 1, float("inf"))
        compared, gains = self._past(lane)
        scale = count / len(compared)
        most = max(lane.most_tokens - tokens, 0)
        order = np.argsort(-compared, axis=None, kind="stable")
        ranked, gained, slot = compared.ravel()[order], gains.ravel()[order], order % self.block
        drafted = []
        for slots in range(1, self.block + 1):
            among = slot < slots
            ranks = ranked[among]
            brought = np.zeros(len(ranks) + 1)
            np.cumsum(gained[among], out=brought[1:])
            taken = scale * np.arange(len(brought), dtype=np.float64)
            inside = taken <= most
            for cohorts in [each for each in lane.cohorts if each <= together] or [1]:
                longest = max(slots, others.slots)
                seconds = self.cost.round_s(tokens + taken, lane.context, together, longest, cohorts)
                rates = np.where(inside, (worth + scale * brought) / seconds, 0.0)
                at = int(rates.argmax())
                price = float(ranks[at - 1]) if at else float("inf")
                drafted.append(_Option(float(rates[at]), float(seconds[at]), slots, cohorts, price))
        return plain, drafted

    def _plain_s(self, tokens: float, lane: Lane) -> float:
        """Of a round in which nothing is drafted but for the others."""
        others, together = lane.others, len(lane.sequences) + lane.others.sequences
        if not others.slots:
            return self.cost.plain_s(together, lane.context)
        return float(self.cost.round_s(np.array([tokens]), lane.context, together, others.slots, 1)[0])

    def _past(self, lane: Lane) -> tuple[Floats, Floats]:
        """What recent blocks would be compared by and worth, [m, b]; of a lane without a past what is hoped for."""
        if not self._recent:
            usual = self.acceptance.usual()
            hoped: Floats = float(lane.weight.mean()) * np.cumprod(usual, dtype=np.float64)[None, :]
            return hoped, hoped
        return np.concatenate([each[0] for each in self._recent]), np.concatenate([each[1] for each in self._recent])

    def _plan(self, lane: Lane, chosen: _Option) -> Plan:
        if chosen.slots == 0:
            return Plan(self._number, PLAIN, 1, lane.window)
        trust = {key: self.acceptance.trust(key) for key in set(lane.keys)}
        weights = [float(w) * trust[key] for w, key in zip(lane.weight, lane.keys, strict=True)]
        cap = min(max(lane.most_tokens - len(weights), 0), NO_CAP)
        terms = Terms(PlanKind.PRICE, chosen.slots, chosen.price, weights[0], cap)
        others: Mapping[int, SequencePlan] = {
            number: SequencePlan(terms._replace(weight=weight))
            for number, weight in zip(lane.sequences, weights, strict=True)
            if weight != weights[0]
        }
        draft_s = self.cost.draft_s(len(weights) / chosen.cohorts, chosen.slots) + self.cost.hop.value
        return Plan(self._number, terms, chosen.cohorts, lane.window, draft_s, others)
