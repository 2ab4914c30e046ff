"""Seconds of a whole round of one lane: draft, verification, the hops between them, and what else a round does.

Everything but the measured curves is learned from finished rounds. Plain rounds and speculative ones differ in more
than their tokens (feature rows travel, drafts are asked for), so their overheads are kept apart. So is how long their
steps take (`calm_steps`): those of a calm stretch, where one plain round follows another, and those among drafted ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from coordinator.scheduling.calm_steps import CalmSteps
from coordinator.scheduling.cost_curve import CostCurve, Floats
from coordinator.scheduling.running_fit import STEEPEST, Line, Running
from dspark.rounds.schedule import StepSeconds

SLOT_SHARE = 0.4  # of a draft pass, what grows with its slots, until it was seen
FEW = 8  # one token in so many may be a prompt's in a step that tells how long calm ones take


@dataclass(slots=True)
class Overheads:
    """Seconds a round takes beside device time."""

    verify_hops: Running = field(default_factory=Running)  # round trip less device time
    rest: Running = field(default_factory=Running)  # neither drafting nor verifying: the lane itself, its clients

    @property
    def seen(self) -> bool:
        return self.verify_hops.seen

    @property
    def seconds(self) -> float:
        return self.verify_hops.seconds + self.rest.seconds


class DraftCost:
    """Seconds of one draft pass by (sequences, context, slots). The walk over the slots is sequential.

    The measured curve knows full blocks only; the share of the slots is learned from passes of different lengths.
    """

    def __init__(self, curve: CostCurve | None, block_size: int) -> None:
        self._curve, self._block_size = curve, max(block_size, 1)
        self._alone, self._beside = (Line(share=SLOT_SHARE, weight=0.05, credit=0) for _ in range(2))

    def seconds(self, sequences: int, context: float, slots: int, *, beside: bool = False) -> float:
        """Alone, or beside another cohort's step; 0 while nothing at all is known."""
        if sequences == 0 or slots == 0:
            return 0.0
        full = self._full(sequences, context)
        line = self._beside if beside and self._beside.seen else self._alone
        if not line.seen:
            return full if self._curve is not None else 0.0
        return full * max(line.at(min(slots / self._block_size, 1.0)), 0.0)

    def observe(self, sequences: int, context: float, slots: int, seconds: float, *, beside: bool = False) -> None:
        if sequences and slots:
            line = self._beside if beside else self._alone
            line.observe(min(slots / self._block_size, 1.0), seconds / self._full(sequences, context))

    def _full(self, sequences: int, context: float) -> float:
        """A full block by the curve; without one the line is in seconds."""
        return self._curve.seconds(sequences, context) if self._curve is not None else 1.0


class StepCost:
    """Time of a whole round of one lane."""

    def __init__(self, verify: CostCurve | None, overlaps: Callable[[], bool] = lambda: False) -> None:
        self.verify = verify  # None: greedy verifies everything, and the lane says so
        self.overlaps = overlaps  # whether two cohorts take turns, see `pipelining`
        self.plain, self.speculative = Overheads(), Overheads()
        self._beside = Running(weight=0.1)  # of a step beside another cohort's draft: times what it takes alone
        self.calm = CalmSteps()
        self._own = 0.0  # tokens of the last step that were no prompts'

    @property
    def slower_beside(self) -> float:
        """How much slower steps are while another cohort's drafts are computed; 1 until that was seen."""
        return self._beside.seconds if self._beside.seen else 1.0

    def observe(
        self,
        tokens: float,
        context: float,
        seconds: float,
        sequences: int,
        *,
        ridden: float = 0.0,
        beside: bool = False,
        calm: bool = False,
    ) -> None:
        """A step of so many tokens, `ridden` of them of prompts, took so long, alone or beside another cohort's draft.
        calm: of a plain round after a plain one."""
        if self.verify is None:
            return
        self._own, factor = tokens - ridden, self.calm.factor if calm else 1.0
        if beside:
            self._beside.observe(seconds / (self.verify.seconds(tokens, context, sequences, ridden) * factor))
            return
        if FEW * ridden <= tokens:  # of others it is not certain enough what they would take without their prompts
            self.calm.observe(seconds / self.verify.measured(tokens, context, sequences), calm)
        self.verify.observe(tokens, context, seconds / (self.calm.factor if calm else 1.0), sequences, ridden)

    def of_round(
        self, context: float, draft_s: float, sequences: float = 0.0, ridden: float = 0.0
    ) -> StepSeconds | None:
        """Tokens in the verification, the `ridden` ones of prompts among them -> seconds of a speculative round,
        convex; None without a measured curve.

        `draft_s` are the seconds the round waits for its drafts, hops included.
        """
        if self.verify is None:
            return None
        riding = self.riding(ridden, context, sequences)
        return self._raised(self.verify.column(context, sequences), riding, draft_s + self.speculative.seconds)

    def of_round_measured(
        self, context: float, draft_s: float, sequences: float = 0.0, ridden: float = 0.0
    ) -> StepSeconds | None:
        """The same on the measured stairs."""
        if self.verify is None:
            return None
        riding = self.riding(ridden, context, sequences)
        return self._raised(self.verify.stairs(context, sequences), riding, draft_s + self.speculative.seconds)

    def of_plain_round(self, tokens: float, context: float, sequences: float = 0.0, ridden: float = 0.0) -> float:
        """Seconds of a round without any draft. Until one was seen, as a speculative one without its draft."""
        assert self.verify is not None
        overheads = self.plain if self.plain.seen else self.speculative
        return self.calm.hoped * self.verify.seconds(tokens, context, sequences, ridden) + overheads.seconds

    def riding(self, ridden: float, context: float, sequences: float, share: float = 1.0) -> float:
        """Seconds that tokens of prompts take more than as many others, in a step like a share of the last one."""
        if self.verify is None:
            return 0.0
        return self.verify.riding(ridden, context, sequences, max(share * self._own, sequences))

    def _raised(self, step: StepSeconds, riding: float, by: float) -> StepSeconds:
        times = self.slower_beside if self.overlaps() else 1.0

        def seconds(tokens: Floats) -> Floats:
            alone = step(tokens)
            raised: Floats = times * np.maximum(alone + riding, alone / STEEPEST) + by
            return raised

        return seconds
