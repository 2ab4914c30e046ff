"""What rounds of one lane take: measured curves, each corrected by one slow ratio of measured to expected.

One ratio for each kind: passes of plain rounds, passes of drafted rounds, drafts. What is left of a drafted round is
the time between them. Passes with prompts in them say nothing of any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from coordinator.planning.cost_curve import CostCurve
from dspark.rounds.survival import Floats

DraftSeconds = Callable[[float, int], float]  # (sequences, slots) -> seconds of a pass
WEIGHT = 0.05  # of one round, once there were as many as it takes to outweigh it
OUTLIER = 1.5  # a single measurement counts as at most so many times what is expected
LEAST_S = 1e-7


@dataclass(slots=True)
class RunningRatio:
    """A slow mean that nobody can pull away at once."""

    value: float
    seen: int = 0

    def add(self, measured: float) -> None:
        if not np.isfinite(measured) or measured <= 0.0:
            return
        self.seen += 1
        bounded = min(max(measured, self.value / OUTLIER), self.value * OUTLIER)
        self.value += max(WEIGHT, 1.0 / (self.seen + 1.0)) * (bounded - self.value)


@dataclass(slots=True)
class CostCorrector:
    """Seconds of rounds, by what they hold."""

    verify: CostCurve
    draft: DraftSeconds
    hop: RunningRatio  # seconds of a drafted round that are neither a pass nor a draft
    plain: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))
    drafted: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))
    drafting: RunningRatio = field(default_factory=lambda: RunningRatio(1.0))

    def observe_plain(self, tokens: float, context: float, sequences: int, round_s: float) -> None:
        """A plain round, with all it took."""
        self.plain.add(round_s / self.verify.measured(tokens, context, sequences))

    def observe_drafted(self, tokens: float, context: float, sequences: int, forward_s: float) -> None:
        self.drafted.add(forward_s / self.verify.measured(tokens, context, sequences))

    def observe_draft(self, sequences: int, slots: int, forward_s: float) -> None:
        self.drafting.add(forward_s / max(self.draft(sequences, slots), LEAST_S))

    def plain_s(self, sequences: float, context: float) -> float:
        return self.plain.value * self.verify.measured(sequences, context, sequences)

    def draft_s(self, sequences: float, slots: int) -> float:
        """Of the draft alone."""
        return self.drafting.value * self.draft(sequences, slots)

    def round_s(
        self, tokens: Floats, context: float, sequences: float, drafting: float, slots: int, cohorts: int
    ) -> Floats:
        """[m] seconds in which all sequences get one round, by tokens [m] in their passes; `drafting` of them have
        `slots` drafted.

        Of two cohorts one drafts while the other is verified: the longest of both passes, of both drafts, and of what
        one of them takes by itself.
        """
        part = sequences / cohorts
        step = self.drafted.value * self.verify.stairs(context, part)(tokens / cohorts)
        draft = self.draft_s(drafting / cohorts, slots)
        alone: Floats = step + draft + self.hop.value
        return alone if cohorts == 1 else np.maximum(np.maximum(2.0 * step, 2.0 * draft), alone)
