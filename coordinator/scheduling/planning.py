"""What a cohort asks of its drafters: for whom, and how many slots. Decided before the draft, from finished rounds.

Drafting is a cost like verification: slots are drawn one after the other, so the length asked for is the one at which
expected tokens per second are highest, over the sequences whose drafts bring more than the cohort would commit in the
time they take; the others go plain. Where that is nobody, the cohort goes without a draft, so that speculation is
never much slower than plain decoding. What is not drafted brings no evidence, so plain stretches are broken by probes,
ever more rarely while they fail, and some rounds draft whole blocks.

Invariant 2, no peeking: costs and evidence are older than the draft; probes follow a keyed hash of (sequence, round).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.scheduling.choice import Bools, Drafts, DraftSeconds, Field, Options, best_rows
from coordinator.scheduling.cost_curve import LEAST_SECONDS
from coordinator.scheduling.evidence import WEIGHT, Evidence, keyed
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Columns, Kind
from dspark.rounds.schedule import Floats, Ints

WARM_UP = 8  # drafted rounds before there is an opinion
ENTER, LEAVE = 1.04, 0.98  # plain decoding has to be this much better to begin with, and to go on
FIRST_PROBE = 16  # plain rounds before the first probe; every probe that fails doubles them
PROBE_WEIGHT = 0.25  # of a probe's round in the evidence
PROMISING = 0.9  # a probe that betters the ratio to plain decoding by this is followed up at once
CLOSE = 0.85  # ratio of plain decoding from which on a lane is tried without drafts
LOOK_EVERY = 8  # plain rounds, one of which weighs drafts anew: without new evidence only costs have moved
PATIENCE = 4  # rounds a probe waits for rows that are resent
ROWS_TAKE = (1, 2)  # rounds in which rows that rested come to their drafter
NEAR = 0.995  # blocks within this of the best rate are as good


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

    def __init__(
        self,
        cost: StepCost,
        evidence: Evidence,
        *,
        explore: float,
        bypass: bool,
        silent: Callable[[], bool] = lambda: False,
    ) -> None:
        """silent: whether the lane goes without drafts for now, see `pipelining`."""
        self._cost, self._evidence = cost, evidence
        self._explore, self._bypass, self._silent = explore, bypass, silent
        self._most_probe = round(4.0 / explore) if explore > 0 else 1 << 30
        self.plain = False
        self.price = 1.0  # survival from which on a slot is worth its place in a step
        self._interval, self._left = FIRST_PROBE, FIRST_PROBE
        self._weighed: tuple[Cohort, Field, Drafts, float] | None = None  # what was weighed last
        self._weighed_at, self._looks = -1, 0  # drafted rounds by then, rounds before it is weighed again
        self._ratio = 0.0  # plain decoding's expected rate over that of the best draft length
        self._probed_at = 0.0  # the ratio of plain decoding when the last probe went out, 0 once it was looked at

    def plan(self, cohort: Cohort, draft_seconds: DraftSeconds) -> Plan:
        everybody = Plan(self._evidence.slots, cohort.able, cohort.able, np.zeros(len(cohort.row), np.bool_))
        free = cohort.able & cohort.policies.adaptive
        if self._silent():
            self.plain, self._left, self._looks = True, 1, 0  # afterwards a look, not what was thought
            return Plan(everybody.slots, cohort.able, cohort.able & ~free, free)
        if self._cost.verify is None or not free.any() or self._evidence.rounds < WARM_UP:
            self._ratio = 0.0
            return everybody
        self._looks -= 1
        if self._bypass and self.plain and self._evidence.rounds == self._weighed_at and self._looks > 0:
            return self._plain_plan(cohort, free, everybody)
        self._weighed_at, self._looks = self._evidence.rounds, LOOK_EVERY
        field, plain = self._field(cohort, free, draft_seconds)
        drafts = self._drafts(cohort, free, draft_seconds)
        self._weighed = (cohort, field, drafts, plain)
        options = self._in_turn(cohort, field, drafts, plain)
        best = float(options.rates.max())
        near = np.flatnonzero(options.rates >= NEAR * best)
        # Longer blocks keep what is known of their last slots fresh; beside another step their time seems to be free.
        at = int(near[0] if self._cost.overlaps() else near[-1])
        slots = 1 + at
        self._set_price(cohort, float(options.tokens[at]), max(best, plain))
        if self._bypass and self._goes_plain(plain / best, options.pays):
            return self._plain_plan(cohort, free, everybody)
        resting = self._rest(cohort, free & ~options.chosen[:, at])
        if self._explores(cohort, 2.0 * self._explore):
            slots = self._evidence.slots
        probed = resting & (keyed(cohort.sequence, cohort.round) < self._explore)
        ahead = [keyed(cohort.sequence, cohort.round + np.uint64(rounds)) for rounds in ROWS_TAKE]
        soon = resting & (np.minimum.reduce(ahead) < self._explore)
        return Plan(slots, cohort.able, cohort.able & ~(resting & ~probed), resting & ~probed & ~soon)

    @property
    def goes_plain(self) -> bool:
        """Whether sequences that nothing is known of go without a draft."""
        return self.plain or self._silent()

    def overlap_pays(self) -> bool:
        """Whether drafts may beat plain decoding once they pass behind another cohort's step."""
        if self._weighed is None or len(self._weighed[0].row) < 2:
            return False
        return self._best_overlapped(*self._weighed) > self._weighed[-1]

    def plain_could_win(self) -> bool:
        """Whether a lane without drafts is expected to come near: it saves what no model of rounds knows, too."""
        return self._bypass and self._ratio > CLOSE

    # The whole cohort.

    def _field(self, cohort: Cohort, free: Bools, draft_seconds: DraftSeconds) -> tuple[Field, float]:
        """What there is to choose from, and the rate of a round in which no free row is drafted for."""
        count, most = len(cohort.row), self._evidence.slots
        gain = self._evidence.gain[cohort.row] * (self._evidence.trust(cohort.row) * cohort.weight)[:, None]
        own, able = cohort.able & ~free, max(int(cohort.able.sum()), 1)
        reach = _reach(cohort, most)
        settled = own[:, None] & (np.arange(most) < reach[:, None])
        field = Field(
            free,
            np.cumsum(gain, axis=1),
            np.cumsum(self._evidence.used[cohort.row], axis=1),
            float(cohort.weight.sum()) + float(gain[settled].sum()),
            count + cohort.extra_tokens + float(settled.sum()),
            int(own.sum()),
            able,
        )
        if not field.own:
            plain_s = self._cost.of_plain_round(field.tokens, cohort.context, count, cohort.extra_tokens)
            return field, field.worth / plain_s
        step = self._cost.of_round_measured(cohort.context, 0.0, count, cohort.extra_tokens)
        assert step is not None
        drafts_s = draft_seconds(field.own / able, int(reach[own].max()))
        return field, field.worth / (float(step(np.array([field.tokens]))[0]) + drafts_s)

    def _drafts(self, cohort: Cohort, free: Bools, draft_seconds: DraftSeconds) -> Drafts:
        most = self._evidence.slots
        own_slots = int(_reach(cohort, most)[cohort.able & ~free].max(initial=0))
        return Drafts.of(draft_seconds, [max(slots, own_slots) for slots in range(1, most + 1)])

    def _in_turn(self, cohort: Cohort, field: Field, drafts: Drafts, plain: float) -> Options:
        """Draft, then step."""
        step = self._cost.of_round_measured(cohort.context, 0.0, len(cohort.row), cohort.extra_tokens)
        assert step is not None
        row_s = field.slope(step) * field.used + drafts.each / field.able
        return best_rows(field, plain, row_s, lambda tokens, share: step(tokens) + drafts.seconds(share))

    def _best_overlapped(self, cohort: Cohort, field: Field, drafts: Drafts, plain: float) -> float:
        """The best rate with drafts if halves of the cohort took turns: a row takes its tokens' time, 0 if none pays.

        Half a cohort's draft passes behind the other half's step, or shows where it is longer.
        """
        assert self._cost.verify is not None
        count, ridden = len(cohort.row) / 2.0, cohort.extra_tokens / 2.0
        half = self._cost.verify.stairs(cohort.context, count)
        riding = self._cost.riding(ridden, cohort.context, count, share=0.5)
        rest, slower = self._cost.speculative.seconds, self._cost.slower_beside

        def round_s(tokens: Floats, share: Floats) -> Floats:
            each = slower * np.maximum(half(tokens / 2.0) + riding, LEAST_SECONDS)
            return np.maximum(2.0 * each, each + slower * drafts.seconds(share / 2.0) + rest)

        row_s = field.slope(lambda tokens: 2.0 * slower * half(tokens / 2.0)) * field.used
        options = best_rows(field, plain, row_s, round_s)
        return float(options.rates.max()) if options.pays else 0.0

    def _goes_plain(self, ratio: float, pays: bool) -> bool:
        """ratio: of plain decoding's rate to the best with drafts. pays: whether any row is worth a draft."""
        if not self.plain and (ratio > ENTER or not pays):
            # A lane that keeps changing its mind tries no oftener than one that waited as long.
            self.plain, self._interval = True, max(self._interval // 2, FIRST_PROBE)
            self._left = self._interval
        elif self.plain and ratio < LEAVE and pays:
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
        step = self._cost.of_round(cohort.context, 0.0, len(cohort.row), cohort.extra_tokens)
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


def _reach(cohort: Cohort, most: int) -> Ints:
    """[n] slots that rows with drafts of their own ask for."""
    reach: Ints = np.where(cohort.policies.kind == Kind.FIXED, np.minimum(cohort.policies.slots, most), most)
    return reach
