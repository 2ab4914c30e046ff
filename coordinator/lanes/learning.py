"""What a judged round says about the next ones: costs, calibration, evidence, budgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coordinator.lanes.monitor import Monitor
from coordinator.lanes.ports import Judged
from coordinator.lanes.refit import Refit
from coordinator.lanes.rounds import Blocks, Turn
from coordinator.scheduling.budget import Budget
from coordinator.scheduling.evidence import Evidence
from coordinator.scheduling.planning import Cohort, Plan
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Kind
from dspark.rounds.schedule import Floats, Ints
from dspark.types import Verdict

REFIT_EVERY = 4  # judged rounds, one of which is looked at for calibration: the others would only cost time


class Learning:
    """Of one lane."""

    def __init__(self, cost: StepCost, evidence: Evidence, budget: Budget, monitor: Monitor | None = None) -> None:
        self._cost, self._evidence, self._budget, self._monitor = cost, evidence, budget, monitor
        self.refit = Refit(every=REFIT_EVERY)
        self.verify_s = 0.0  # device seconds of the last step
        self.extra_tokens = 0.0  # of the last step, besides its cohort's: of prompts that rode along

    def learn(
        self,
        turns: Sequence[Turn],
        cohort: Cohort,
        blocks: Blocks,
        judged: Judged,
        plan: Plan,
        *,
        price: float,
        speculative: bool,
        calm: bool,
        rest_s: float | None,
    ) -> None:
        """`calm`: this round follows another, and neither asked for drafts. `rest_s`: seconds of the round that were
        neither drafting nor verifying; None when it overlapped another."""
        if self._monitor is not None:
            self._monitor.observe(judged.draws)
        accepted, verified = _outcomes(turns, judged)
        self.verify_s = judged.forward_s
        if rest_s is not None and (speculative or calm):
            (self._cost.speculative if speculative else self._cost.plain).rest.observe(rest_s)
        self.extra_tokens = float(judged.prefill_tokens)
        if judged.tokens:  # none in verdicts that were said again
            beside = rest_s is None
            self._cost.observe(
                judged.tokens,
                cohort.context,
                judged.forward_s,
                len(turns),
                ridden=judged.prefill_tokens,
                beside=beside,
                calm=calm,
            )
        if not blocks.confidence.shape[1]:
            return
        known = (blocks.lengths > 0) & (accepted >= 0)
        if self.refit.due():
            # Those whose round ended their answer too: it did for what was accepted, and leaving them out for it
            # would make every other round look worse than rounds are.
            kept = [turn for turn, count in zip(turns, known.tolist(), strict=True) if count]
            confidence = Blocks.of(kept).confidence
            labels = _labels(judged, confidence.shape[1])
            told = None if labels is None else labels[known]
            self.refit.observe(kept, confidence, verified[known], accepted[known], told)
        row = np.fromiter((turn.track.row for turn in turns), np.int64, len(turns))  # -1 once a sequence has ended
        counts = known & (row >= 0)
        alive = blocks.alive()
        self._evidence.observe(
            row[counts],
            alive[counts],
            blocks.lengths[counts],
            verified[counts],
            accepted[counts],
            price=price,
            least_weight=plan.least_weight,
        )
        asynchronous = counts & (cohort.policies.kind == Kind.ASYNC)
        if asynchronous.any():
            worth = self._evidence.trust(row[asynchronous]) * cohort.weight[asynchronous]
            self._budget.remember(alive[asynchronous] * worth[:, None])


def _labels(judged: Judged, width: int) -> Floats | None:
    """[n, width, 2] the chances to get to a slot and to keep it too; NaN where nothing is known. None: nowhere."""
    if judged.labels is None:
        return None
    slots = np.fromiter((each.judged if isinstance(each, Verdict) else 0 for each in judged.verdicts), np.int64)
    if int(slots.sum()) != len(judged.labels) or int(slots.max(initial=0)) > width:
        return None
    grid = np.full((len(slots), width, 2), np.nan)
    grid[np.arange(width) < slots[:, None]] = judged.labels
    return grid


def _outcomes(turns: Sequence[Turn], judged: Judged) -> tuple[Ints, Ints]:
    """[n] slots accepted, before an end cut the answer, and slots verified; -1 and 0 where no verdict fits."""
    accepted, verified = np.full(len(turns), -1), np.zeros(len(turns), np.int64)
    for row, (turn, verdict) in enumerate(zip(turns, judged.verdicts, strict=True)):
        if not isinstance(verdict, Verdict) or verdict.cursor != turn.cursor:
            continue
        if 0 <= verdict.accepted <= verdict.judged <= turn.prefix:
            accepted[row], verified[row] = verdict.accepted, verdict.judged
    return accepted, verified
