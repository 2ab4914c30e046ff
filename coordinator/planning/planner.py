"""Plans the rounds of one lane: how many slots are drafted, the price of a slot, how many cohorts.

Algorithm 1 over recent blocks: their slots in descending order of what the verifier will compare,
cut where expected tokens per second are highest, for every length of blocks, for one cohort and for
two (`options`). The last slot taken sets the price. Drafting nothing is always among the
candidates: a draft is paid before any slot of it is judged, so drafted slots alone cannot show that
drafts do not pay. Some plans try another option than the best (`tries`).

Invariant 2, no peeking: everything in a plan is older than any block that it applies to. So steps
may be measured stairs and all sizes may be searched.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from coordinator.planning.acceptance import AcceptanceEstimator
from coordinator.planning.cost import LEAST_SECONDS, CostCorrector
from coordinator.planning.exploration import EXPLORE, Exploration, few_of, keyed
from coordinator.planning.options import LaneOptions, PlannedLane, PlanOption
from dspark.rounds.control import PassReport
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import PLAIN, BlockTerms, Plan, PlanKind, SequencePlan
from dspark.rounds.survival import Floats

WARM_UP = 64  # blocks before it is decided whether drafts pay
STAYS = 1.01  # factor by which another plan must be better than the one in force
CURVE_POINTS = 40  # most points of the expected rate by slots verified


@dataclass(frozen=True, slots=True)
class ValidRounds:
    """The valid rounds of a reported pass, in columns [n]."""

    report: PassReport
    rounds: list[RoundReport]
    keys: list[Hashable]
    weights: list[float]
    formed: list[bool]  # whether the answer has a constraint


class Planner:
    """The planner of one lane: `learn` takes every finished pass, `next` returns the next plan."""

    def __init__(
        self, cost: CostCorrector, slots: int, *, explore: float = EXPLORE, bypass: bool = True
    ) -> None:
        """bypass: whether a lane may go without drafts where they do not pay."""
        self.cost, self.acceptance, self.block = cost, AcceptanceEstimator(slots), slots
        hoped: Floats = np.cumprod(self.acceptance.usual(), dtype=np.float64)
        self._options = LaneOptions(cost, slots, hoped, bypass=bypass)
        self._tries = Exploration(explore)
        self._number = 0
        self._last = PlanOption(0.0, 1.0, slots, 1, 0.0)  # thought best
        self._lane: PlannedLane | None = None  # as of the last plan
        self._drafted: bool | None = None  # whether the last pass was of drafted blocks

    def learn(
        self, applied: ValidRounds, context: float, *, cohorts: int, together: int, drafted: bool
    ) -> None:
        """Learns from one pass, of a round at least. context: mean committed length. together:
        sequences of the lane, in so many cohorts. drafted: whether sequences had blocks whose terms
        are this planner's."""
        report, rounds, timing = applied.report, applied.rounds, applied.report.timing
        confidence = _grid([each.confidence for each in rounds])
        count, width = confidence.shape
        rows = [row for row, each in enumerate(rounds) if len(each.confidence)]
        again, self._drafted = self._drafted is (width > 0), width > 0
        self._tries.seen(drafted)
        if again and not report.prefill_tokens:
            cost, alone = self.cost, cohorts == 1
            expected_s = cost.verify.measured(report.tokens, context, count)
            if not width and alone:
                cost.correct(cost.plain, timing.round_s / expected_s)
            elif width and alone:
                cost.correct(cost.drafted, timing.forward_s / expected_s)
                cost.hop.add(timing.round_s - timing.forward_s - timing.draft_s)
            elif width and count < together:  # else a pass of before the lane was parted
                parts = together / count
                tokens = np.array([parts * report.tokens])
                seconds = cost.round_s(tokens, context, together, parts * len(rows), width, 2)
                cost.correct(cost.paired, cost.paired.value * timing.round_s / float(seconds[0]))
        if rows:
            if cohorts == 1:
                expected_s = max(self.cost.draft(len(rows), width), LEAST_SECONDS)
                self.cost.drafting.add(timing.draft_s / expected_s)
            self.acceptance.observe(
                applied.keys,
                confidence,
                np.fromiter((each.verified for each in rounds), np.int64, count),
                np.fromiter((each.accepted for each in rounds), np.int64, count),
                _labels(report, rounds, width),
            )
            self._remember(
                [applied.keys[row] for row in rows],
                confidence[rows],
                np.array(applied.weights)[rows],
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
        self._options.remember(keys, compared, worth)

    def renew(self) -> None:
        """Seconds of drafts changed: the next plan computes everything anew."""
        self._options.renew()

    @property
    def home(self) -> tuple[int, int]:
        """(slots, cohorts) of the option thought best; a few plans try another one."""
        return self._last.slots, self._last.cohorts

    def next(self, lane: PlannedLane) -> Plan:
        """The next plan of a lane with a sequence at least."""
        self._number, self._lane = self._number + 1, lane
        plain, drafted = self._options.of(lane)
        best = max((plain, *drafted), key=lambda option: option.rate)
        kept = next((each for each in (plain, *drafted) if each.alike(self._last)), best)
        self._last = chosen = kept if best.rate < STAYS * kept.rate else best
        # A few plans fill no pipeline: what is tried keeps the cohorts that are in force.
        able = [each for each in drafted if each.cohorts == chosen.cohorts] or drafted
        whole = max(
            (each for each in able if each.slots == self.block), key=lambda option: option.rate
        )
        if self._options.blocks < WARM_UP:
            return self._plan(lane, whole)
        others = [each for each in (whole, plain) if each.rate and each.slots != chosen.slots]
        drawn = keyed(lane.sequences[0], self._number)
        tried = self._tries.next(drawn, chosen, others)
        few = None if chosen.slots else few_of(lane.keys)
        return self._plan(lane, chosen) if tried is None else self._plan(lane, tried, few)

    @property
    def curve(self) -> tuple[list[tuple[float, float]], float] | None:
        """((slots verified, expected tokens per second) thinned out, slots chosen), for blocks of
        the length in force; None without drafts in force."""
        if self._lane is None or not self._last.slots:
            return None
        found, scale = self._options.prefix_of(self._lane, self._last)
        step = max(-(-len(found.rates) // CURVE_POINTS), 1)
        shown = sorted({*range(0, len(found.rates), step), found.chosen, len(found.rates) - 1})
        return [(scale * size, float(found.rates[size])) for size in shown], scale * found.chosen

    def _plan(
        self, lane: PlannedLane, chosen: PlanOption, few: Sequence[int] | None = None
    ) -> Plan:
        """few: places of the sequences that draft; None: all."""
        if chosen.slots == 0:
            return Plan()
        trust = {key: self.acceptance.trust(key) for key in set(lane.keys)}
        weights = [float(w) * trust[key] for w, key in zip(lane.weight, lane.keys, strict=True)]
        terms = BlockTerms(PlanKind.PRICE, chosen.slots, chosen.price, weights[0])
        every = PLAIN if few is not None and len(few) < len(weights) else terms
        sequences: Mapping[int, SequencePlan] = {
            lane.sequences[place]: SequencePlan(terms._replace(weight=weights[place]))
            for place in (range(len(weights)) if few is None else few)
            if every is PLAIN or weights[place] != weights[0]
        }
        drafting = (len(weights) if few is None else len(few)) / chosen.cohorts
        draft_s = self.cost.draft_s(drafting, chosen.slots) + self.cost.hop.value
        return Plan(every, chosen.cohorts, draft_s=draft_s, sequences=sequences)


def _grid(blocks: Sequence[Sequence[float]]) -> Floats:
    """Confidences as [n, k], NaN beyond each block."""
    lengths = [len(each) for each in blocks]
    longest = max(lengths, default=0)
    grid = np.full((len(blocks), longest), np.nan)
    inside = np.arange(longest) < np.array(lengths)[:, None]
    grid[inside] = np.fromiter(chain.from_iterable(blocks), np.float64, sum(lengths))
    return grid


def _labels(report: PassReport, rounds: Sequence[RoundReport], width: int) -> Floats | None:
    """[n, k, 2] labels of these rounds; None if the report's do not fit them."""
    told = report.labels
    verified = [each.verified for each in rounds]
    if told is None or len(rounds) != len(report.report.rounds) or told.shape != (sum(verified), 2):
        return None
    grid = np.full((len(rounds), width, 2), np.nan)
    grid[np.arange(width) < np.array(verified)[:, None]] = told
    return grid
