"""What reported passes leave to learn and to count, done when nobody waits for it."""

from __future__ import annotations

import enum

from coordinator.lanes.lane_drafters import LaneDrafters
from coordinator.lanes.monitor import Monitor
from coordinator.lanes.round_counts import RoundCounts
from coordinator.planning.lane_plans import Applied, LanePlans
from dspark.runtime.telemetry import Metrics


class Mode(enum.Enum):
    """How a verifier goes about its rounds, as metrics name it."""

    ONE = "one cohort"
    TWO = "two cohorts"
    PLAIN = "no drafts"


class RoundLearning:
    """Of one lane."""

    def __init__(
        self,
        lane: str,
        plans: LanePlans,
        drafters: LaneDrafters,
        counts: RoundCounts,
        monitor: Monitor,
        metrics: Metrics,
    ) -> None:
        self._lane, self._plans, self._drafters, self._counts = lane, plans, drafters, counts
        self._monitor, self._metrics = monitor, metrics
        self._applied: list[Applied] = []
        self._mode: Mode | None = None

    def note(self, applied: Applied) -> None:
        self._applied.append(applied)

    def catch_up(self) -> bool:
        """Returns whether there was anything."""
        applied, self._applied = self._applied, []
        for each in applied:
            self._monitor.observe(each.report.draws)
            if each.rounds:
                self._count(each)
                self._plans.learn(each)
                if self._drafters.observe(each.rounds, each.formed):
                    self._plans.drafters(self._drafters.costs())
        self._counts.tell()
        if applied:
            self._say_mode()
        return bool(applied)

    def close(self) -> None:
        self.catch_up()
        self._show(None)
        self._drafters.close()

    def _count(self, applied: Applied) -> None:
        metrics, timing = self._metrics, applied.report.timing
        metrics.cohorts.inc()
        metrics.verify_rpc.observe(timing.forward_s)
        if timing.waited_s > 0.0:
            metrics.draft_rpc.observe(timing.waited_s)
        if self._plans.in_force.cohorts == 1 and timing.round_s > 0.0:
            metrics.pipeline_bubble.observe(max(timing.round_s - timing.forward_s, 0.0))

    def _say_mode(self) -> None:
        """What operators see of how a verifier goes about its rounds; single plans that try something are not."""
        slots, cohorts = self._plans.mode
        self._show(Mode.PLAIN if not slots else Mode.TWO if cohorts == 2 else Mode.ONE)

    def _show(self, mode: Mode | None) -> None:
        if mode is not self._mode:
            self._mode = mode
            for each in Mode:
                self._metrics.lane_mode.labels(lane=self._lane, mode=each.value).set(float(each is mode))
