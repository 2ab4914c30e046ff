"""What a cohort asks of its drafters: for whom, and how many slots. Decided before the draft, from finished rounds.

Drafting is a cost like verification: slots are drawn one after the other, so the length asked for is the one at which
expected tokens per second are highest, over the sequences whose drafts bring more than the cohort would commit in the
time they take; the others go plain. Where that is nobody, the cohort goes without a draft, so that speculation is
never much slower than plain decoding. What is not drafted brings no evidence, so plain stretches are broken by probes,
ever more rarely while they fail, and some rounds draft whole blocks.

Invariant 2, no peeking: costs and evidence are older than the draft; probes follow a keyed hash of (sequence, round).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
NEAR = 0.995  # blocks within this of the best rate are as good
TURNS = 3  # between the choice of rows and the rate it brings


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


class Drafts(NamedTuple):
    """Seconds of a draft by slots [k], linear in the share of the sequences that could be drafted for."""

    first: Floats
    each: Floats  # for all of them, on top

    @staticmethod
    def of(draft_seconds: DraftSeconds, slots: Sequence[int]) -> Drafts:
        whole = np.array([draft_seconds(1.0, count) for count in slots])
        half = np.array([draft_seconds(0.5, count) for count in slots])
        first = np.maximum(2.0 * half - whole, 0.0)
        return Drafts(first, whole - first)

    def seconds(self, share: Floats) -> Floats:
        """share [k], 0 where nobody is drafted for."""
        return np.where(share > 0.0, self.first + share * self.each, 0.0)


class Options(NamedTuple):
    """What a cohort could do, by slots drafted, [k + 1], 0 first: plain decoding but for rows that insist."""

    rates: Floats  # expected weighted tokens per second, 0 where no row pays
    tokens: Floats  # in the step
    chosen: Bools  # [n, k + 1] free rows that pay
    worth: Floats  # weighted tokens
    drafts: Drafts


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
        options = self._options(cohort, free, draft_seconds)
        rates = options.rates
        best = float(rates[1:].max())
        near = np.flatnonzero(rates[1:] >= NEAR * best)
        # Longer blocks keep what is known of their last slots fresh; beside another step their time seems to be free.
        slots = 1 + int(near[0] if self._cost.overlapping else near[-1])
        self._set_price(cohort, float(options.tokens[slots]), max(best, float(rates[0])))
        self.overlap_pays = len(cohort.row) > 1 and self._best_overlapped(cohort, options) > rates[0]
        if self._bypass and self._goes_plain(float(rates[0]) / best if best else np.inf):
            return self._plain_plan(cohort, free, everybody)
        resting = self._rest(cohort, free & ~options.chosen[:, slots])
        if self._explores(cohort, 2.0 * self._explore):
            slots = self._evidence.slots
        probed = resting & (keyed(cohort.sequence, cohort.round) < self._explore)
        soon = resting & (keyed(cohort.sequence, cohort.round + np.uint64(1)) < self._explore)
        return Plan(slots, cohort.able, cohort.able & ~(resting & ~probed), resting & ~probed & ~soon)

    # The whole cohort.

    def _options(self, cohort: Cohort, free: Bools, draft_seconds: DraftSeconds) -> Options:
        """What the best choice of free rows brings, by slots drafted for them, 0 first.

        A row is worth its draft if it brings more than the cohort would in the time that it takes, so the choice
        depends on the rate and the rate on the choice: settled by turns, as for any ratio of sums, from plain
        decoding's rate upwards.
        """
        count, most = len(cohort.row), self._evidence.slots
        gain = self._evidence.gain[cohort.row] * (self._evidence.trust(cohort.row) * cohort.weight)[:, None]
        brought, used = np.cumsum(gain, axis=1), np.cumsum(self._evidence.used[cohort.row], axis=1)
        own = cohort.able & ~free
        reach = np.where(cohort.policies.kind == Kind.FIXED, cohort.policies.slots, most)
        settled = own[:, None] & (np.arange(most) < reach[:, None])
        worth = float(cohort.weight.sum()) + float(gain[settled].sum())
        tokens = count + cohort.extra_tokens + float(settled.sum())
        step = self._cost.of_round_measured(cohort.context, 0.0, count)
        assert step is not None
        able, own_slots = max(int(cohort.able.sum()), 1), min(int(reach[own].max(initial=0)), most)
        plain_s = self._cost.of_plain_round(tokens, cohort.context, count)
        if own.any():
            plain_s = float(step(np.array([tokens]))[0]) + draft_seconds(float(own.sum()) / able, own_slots)
        drafts = Drafts.of(draft_seconds, [max(slots, own_slots) for slots in range(1, most + 1)])
        everybody = tokens + np.where(free[:, None], used, 0.0).sum(axis=0)
        per_token = (step(everybody) - step(np.array([tokens]))) / np.maximum(everybody - tokens, 1.0)
        seconds = per_token * used + drafts.each / able  # [n, most] that a row adds
        rate = plain = worth / plain_s
        for _ in range(TURNS):
            chosen = free[:, None] & (rate * seconds <= brought)
            rows = chosen.sum(axis=0)
            whole = worth + np.where(chosen, brought, 0.0).sum(axis=0)
            asked = tokens + np.where(chosen, used, 0.0).sum(axis=0)
            each = step(asked) + drafts.seconds((rows + int(own.sum())) / able)
            rates = np.where(rows > 0, whole / each, 0.0)
            rate = max(plain, float(rates.max()))
        return Options(
            np.concatenate(([plain], rates)),
            np.concatenate(([tokens], asked)),
            np.concatenate((np.zeros((count, 1), np.bool_), chosen), axis=1),
            np.concatenate(([worth], whole)),
            drafts,
        )

    def _best_overlapped(self, cohort: Cohort, options: Options) -> float:
        """The best rate with drafts if halves of the cohort took turns."""
        assert self._cost.verify is not None
        half = self._cost.verify.stairs(cohort.context, len(cohort.row) / 2.0)
        rest, slower = self._cost.speculative.seconds, self._cost.slower_beside
        each = slower * half(options.tokens[1:] / 2.0)
        share = 0.5 * options.chosen[:, 1:].sum(axis=0) / max(int(cohort.able.sum()), 1)
        two = np.maximum(2.0 * each, each + slower * options.drafts.seconds(share) + rest)
        return float((options.worth[1:] / two).max())

    def _goes_plain(self, ratio: float) -> bool:
        if not self.plain and ratio > ENTER:
            # A lane that keeps changing its mind tries no oftener than one that waited as long.
            self.plain, self._interval = True, max(self._interval // 2, FIRST_PROBE)
            self._left = self._interval
        elif self.plain and ratio < LEAVE:
            self.plain = False
        elif self._probed_at:
            if ratio < PROMISING * self._probed_at:
                self._left = 2
            self._probed_at = 0.0
        self._ratio = ratio
        return self.plain

    def _plain_plan(self, cohort: Cohort, free: Bools, everybody: Plan) -> Plan:
        """No draft, unless a probe is due: of everybody now and then, of newcomers once they are many.

        Rows of those that were looked at rest until a probe is near.
        """
        newcomers = free & (self._evidence.judged[cohort.row] == 0)
        self._left -= 1
        nobody = np.zeros(len(free), np.bool_)
        if self._left > 1:
            if 4 * int((newcomers & cohort.fed).sum()) >= int(free.sum()):  # the past is that of others
                return Plan(
                    everybody.slots, cohort.able, cohort.able & (~free | newcomers), free & ~newcomers, probe=True
                )
            return Plan(everybody.slots, cohort.able, cohort.able & ~free, free & ~newcomers)
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

    def _rest(self, cohort: Cohort, poor: Bools) -> Bools:
        """[n] of the rows that do not pay, those of which that is known."""
        if not self._bypass or len(poor) < 2:
            return np.zeros(len(poor), np.bool_)
        known: Bools = self._evidence.judged[cohort.row] >= WARM_UP // 2
        return poor & known
