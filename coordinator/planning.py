"""What a cohort asks of its drafters: for whom, and how many slots. Decided before the draft, from finished rounds.

Drafting is a cost like verification: slots are drawn one after the other, so the length asked for is the one at which
expected tokens per second are highest; where that is none, the cohort goes without a draft, so that speculation is
never much slower than plain decoding. Beside others a sequence whose drafts bring less than its share of the step
costs goes plain alone. What is not drafted brings no evidence, so plain stretches are broken by probes, ever more
rarely while they fail, and some rounds draft whole blocks.

Invariant 2, no peeking: costs and evidence are older than the draft; probes follow a keyed hash of (sequence, round).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.evidence import WEIGHT, Evidence, keyed
from coordinator.policy import Columns, Kind
from coordinator.prefix_scheduler import Floats, Ints
from coordinator.step_cost import StepCost

Bools = npt.NDArray[np.bool_]
DraftSeconds = Callable[[float, int], float]  # (share of the sequences that could be drafted for, slots) -> seconds

WARM_UP = 8  # drafted rounds before there is an opinion
ENTER, LEAVE = 1.04, 0.98  # plain decoding has to be this much better to begin with, and to go on
FIRST_PROBE = 16  # plain rounds before the first probe; every probe that fails doubles them
PROBE_WEIGHT = 0.25  # of a probe's round in the evidence
PROMISING = 0.9  # a probe that betters the ratio to plain decoding by this is followed up at once
PATIENCE = 4  # rounds a probe waits for rows that are resent
LONGER = 0.995  # the longest block within this of the best rate is asked for


@dataclass(frozen=True, slots=True)
class Cohort:
    """A cohort in columns, [n] each."""

    sequence: npt.NDArray[np.uint64]
    round: npt.NDArray[np.uint64]
    row: Ints  # in `Evidence`
    weight: Floats  # what a token is worth
    policies: Columns
    able: Bools  # a drafter holds its context, or could in a round's time, and there is room for drafted tokens
    fed: Bools  # a draft could be asked for right now
    context: float  # mean committed length
    extra_tokens: float = 0.0  # in the step besides: prefills

    def only(self, rows: Bools) -> Cohort:
        """Those of `rows` [n]."""
        columns = Columns(self.policies.kind[rows], self.policies.slots[rows], self.policies.at[rows])
        return Cohort(
            self.sequence[rows],
            self.round[rows],
            self.row[rows],
            self.weight[rows],
            columns,
            self.able[rows],
            self.fed[rows],
            self.context,
            self.extra_tokens,
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """For whom drafts are asked, how long ones, and whose rows may rest."""

    slots: int
    able: Bools  # [n]
    drafted: Bools  # [n] of those that are able
    resting: Bools  # [n] no draft is near: rows need not travel meanwhile
    probe: bool = False

    @property
    def least_weight(self) -> float:
        return PROBE_WEIGHT if self.probe else WEIGHT


class Planner:
    """Keeps whether a lane's adaptive sequences go plain now, and when that is tried again."""

    def __init__(self, cost: StepCost, evidence: Evidence, *, explore: float, bypass: bool) -> None:
        self._cost, self._evidence = cost, evidence
        self._explore, self._bypass = explore, bypass
        self._most_probe = round(4.0 / explore) if explore > 0 else 1 << 30
        self.plain = False
        self.overlap_pays = False  # drafts may beat plain decoding once they pass behind another cohort's step
        self.price = 1.0  # survival from which on a slot is worth its place in a step
        self._interval, self._left = FIRST_PROBE, FIRST_PROBE
        self._ratio = 0.0  # plain decoding's expected rate over that of the best draft length
        self._probed_at = 0.0  # the ratio of plain decoding when the last probe went out, 0 once it was looked at

    def plan(self, cohort: Cohort, draft_seconds: DraftSeconds) -> Plan:
        everybody = Plan(self._evidence.slots, cohort.able, cohort.able, np.zeros(len(cohort.row), np.bool_))
        free = cohort.able & cohort.policies.adaptive
        if self._cost.verify is None or not free.any() or self._evidence.rounds < WARM_UP:
            return everybody
        rates, tokens = self._rates(cohort, free, draft_seconds)
        best = float(rates[1:].max())
        slots = 1 + int(np.flatnonzero(rates[1:] >= LONGER * best)[-1])
        self._set_price(cohort, float(tokens[slots]), best)
        overlapped = rates[0] if len(cohort.row) < 2 else self._best_overlapped(cohort, rates, tokens, draft_seconds)
        self.overlap_pays = bool(overlapped > rates[0])
        if self._bypass and self._goes_plain(float(rates[0]) / best):
            return self._plain_plan(cohort, free, everybody)
        if self._explores(cohort, 2.0 * self._explore):
            slots = self._evidence.slots
        resting = self._not_worth_it(cohort, free, float(rates[slots]), float(tokens[slots]), slots, draft_seconds)
        probed = resting & (keyed(cohort.sequence, cohort.round) < self._explore)
        soon = resting & (keyed(cohort.sequence, cohort.round + np.uint64(1)) < self._explore)
        return Plan(slots, cohort.able, cohort.able & ~(resting & ~probed), resting & ~probed & ~soon)

    # The whole cohort.

    def _rates(self, cohort: Cohort, free: Bools, draft_seconds: DraftSeconds) -> tuple[Floats, Floats]:
        """Expected (weighted tokens per second, tokens in the step) by slots drafted for the free rows, 0 first."""
        assert self._cost.verify is not None
        count, most = len(cohort.row), self._evidence.slots
        gain = self._evidence.gain[cohort.row] * (self._evidence.trust(cohort.row) * cohort.weight)[:, None]
        used = self._evidence.used[cohort.row]
        own = cohort.able & ~free
        reach = np.where(cohort.policies.kind == Kind.FIXED, cohort.policies.slots, most)
        settled = own[:, None] & (np.arange(most) < reach[:, None])
        base_worth, base_tokens = float(cohort.weight.sum()), count + cohort.extra_tokens
        fixed_worth, fixed_tokens = float(gain[settled].sum()), float(settled.sum())
        worth = base_worth + fixed_worth + np.concatenate(([0.0], np.cumsum(gain[free].sum(axis=0))))
        tokens = base_tokens + fixed_tokens + np.concatenate(([0.0], np.cumsum(used[free].sum(axis=0))))
        step = self._cost.of_round_measured(cohort.context, 0.0, count)
        assert step is not None
        seconds = step(tokens)
        able, fixed_slots = max(int(cohort.able.sum()), 1), int(reach[own].max(initial=0))
        seconds[0] += draft_seconds(float(own.sum()) / able, min(fixed_slots, most))
        for slots in range(1, most + 1):
            seconds[slots] += draft_seconds(1.0, max(slots, min(fixed_slots, most)))
        if not own.any():
            seconds[0] = self._cost.of_plain_round(base_tokens, cohort.context, count)
        return worth / seconds, tokens

    def _best_overlapped(self, cohort: Cohort, rates: Floats, tokens: Floats, draft_seconds: DraftSeconds) -> float:
        """The best rate with drafts if halves of the cohort took turns; `rates` and `tokens` are those of `_rates`."""
        count, most = len(cohort.row), self._evidence.slots
        whole = self._cost.of_round_measured(cohort.context, 0.0, count)
        half = self._cost.of_round_measured(cohort.context, 0.0, count / 2.0)
        assert whole is not None
        assert half is not None
        drafts = np.array([draft_seconds(1.0, slots) for slots in range(1, most + 1)])
        worth = rates[1:] * (whole(tokens[1:]) + drafts)
        drafts = np.array([draft_seconds(0.5, slots) for slots in range(1, most + 1)])
        each = half(tokens[1:] / 2.0)
        two = np.maximum(2.0 * (each - self._cost.speculative.seconds), each + drafts)
        return float((worth / two).max())

    def _goes_plain(self, ratio: float) -> bool:
        if not self.plain and ratio > ENTER:
            self.plain, self._interval = True, FIRST_PROBE
            self._left = FIRST_PROBE
        elif self.plain and ratio < LEAVE:
            self.plain = False
        elif self._probed_at:
            if ratio < PROMISING * self._probed_at:
                self._left = 2
            self._probed_at = 0.0
        self._ratio = ratio
        return self.plain

    def _plain_plan(self, cohort: Cohort, free: Bools, everybody: Plan) -> Plan:
        """No draft, unless a probe is due; rows rest until one is near."""
        newcomers = free & (self._evidence.judged[cohort.row] == 0)
        if 4 * int(newcomers.sum()) >= int(free.sum()):
            self._left = min(self._left, 2)  # the past is that of others
        self._left -= 1
        nobody = np.zeros(len(free), np.bool_)
        if self._left > 1:
            return Plan(everybody.slots, cohort.able, cohort.able & ~free, free)
        if self._left > 0 or (not (free & cohort.fed).any() and self._left > -PATIENCE):
            return Plan(everybody.slots, cohort.able, cohort.able & ~free, nobody)
        self._interval = min(2 * self._interval, max(self._most_probe, FIRST_PROBE))
        jitter = 0.75 + 0.5 * float(keyed(cohort.sequence[:1], cohort.round[:1])[0])
        self._left = max(round(self._interval * jitter), 3)
        self._probed_at = self._ratio
        return Plan(everybody.slots, cohort.able, cohort.able, nobody, probe=True)

    def _set_price(self, cohort: Cohort, tokens: float, rate: float) -> None:
        step = self._cost.of_round(cohort.context, 0.0, len(cohort.row))
        assert step is not None
        more = max(0.1 * tokens, 4.0)
        ends = step(np.array([tokens, tokens + more]))
        self.price = float(ends[1] - ends[0]) / more * rate

    def _explores(self, cohort: Cohort, share: float) -> bool:
        return float(keyed(cohort.sequence[:1], cohort.round[:1])[0]) < share

    # One sequence beside others.

    def _not_worth_it(
        self, cohort: Cohort, free: Bools, rate: float, tokens: float, slots: int, draft_seconds: DraftSeconds
    ) -> Bools:
        """[n] free rows that bring less than the tokens the lane would commit in the time they take."""
        rows = int(free.sum())
        if not self._bypass or rows < 2:
            return np.zeros(len(free), np.bool_)
        step = self._cost.of_round(cohort.context, 0.0, len(cohort.row))
        assert step is not None
        spread = max(0.1 * tokens, 1.0)
        ends = step(np.array([max(tokens - spread, 1.0), tokens]))
        per_token = float(ends[1] - ends[0]) / spread
        able = max(int(cohort.able.sum()), 2)
        per_draft = (draft_seconds(1.0, slots) - draft_seconds(0.5, slots)) / (0.5 * able)
        seconds = per_token * self._evidence.used[cohort.row, :slots].sum(axis=1) + max(per_draft, 0.0)
        trust = self._evidence.trust(cohort.row) * cohort.weight
        brought = self._evidence.gain[cohort.row, :slots].sum(axis=1) * trust
        known = self._evidence.judged[cohort.row] >= WARM_UP // 2
        lost: Bools = free & known & (rate * seconds > ENTER * brought)
        return lost
