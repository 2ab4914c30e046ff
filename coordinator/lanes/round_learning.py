"""Counts and learns from reported rounds: notes them on arrival, evaluates them in a later turn."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from coordinator.lanes.lane_drafters import LaneDrafters
from coordinator.lanes.monitor import Monitor
from coordinator.planning.lane_plans import LanePlans
from coordinator.planning.planner import ValidRounds
from dspark.rounds.events import RoundReport
from dspark.runtime.telemetry import Metrics, observe_all


class JudgedRound(NamedTuple):
    """One answer's judged round. accepted: accepted slots that the answer had room for; why:
    reason for an empty block; label: the request's."""

    said: RoundReport
    accepted: int
    why: str = ""
    label: str = ""


class RoundCounts:
    """Judged rounds that are not in the metrics yet."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tokens: Counter[str] = Counter()  # by label
        self._gaps: list[float] = []
        self._rounds: list[JudgedRound] = []

    def shown(self, tokens: int, gap_s: float | None, label: str = "") -> None:
        """Notes tokens committed to one answer, `gap_s` seconds after the last; None for its
        first."""
        self._tokens[label] += tokens
        if gap_s is not None:
            self._gaps.append(gap_s)

    def judged(self, round: JudgedRound) -> None:
        self._rounds.append(round)

    def tell(self) -> None:
        """Adds what was noted to the metrics, once per kind of number."""
        metrics = self._metrics
        for label, tokens in self._tokens.items():
            metrics.generation_tokens.inc(tokens)
            if label:
                name = metrics.bounded_label(label)
                metrics.label_generation_tokens.labels(label=name).inc(tokens)
        self._tokens.clear()
        gaps, self._gaps = self._gaps, []
        observe_all(metrics.inter_token_latency, gaps)
        rounds, self._rounds = self._rounds, []
        if not rounds:
            return
        metrics.rounds.inc(len(rounds))
        observe_all(metrics.scheduled_verify_length, [each.said.verified for each in rounds])
        for reason, count in Counter(
            each.why or "unspecified" for each in rounds if not each.said.confidence
        ).items():
            metrics.empty_blocks.labels(reason=reason).inc(count)
        for label in {each.label for each in rounds if each.label}:
            self._tell_label(label, [each for each in rounds if each.label == label])
        drafts = [each for each in rounds if each.said.confidence]
        if drafts:
            self._tell_drafts(drafts)

    def _tell_drafts(self, drafts: Sequence[JudgedRound]) -> None:
        metrics, said = self._metrics, [each.said for each in drafts]
        drafted = sum(len(each.confidence) for each in said)
        verified = sum(each.verified for each in said)
        judged = sum(each.accepted for each in said)
        accepted = sum(each.accepted for each in drafts)
        promised = [sum(accumulate(each.confidence[: each.verified], mul)) for each in said]
        metrics.num_expected_tokens.inc(sum(promised))
        metrics.num_drafts.inc(len(drafts))
        metrics.num_draft_tokens.inc(drafted)
        metrics.num_verified_tokens.inc(verified)
        metrics.num_accepted_tokens.inc(accepted)
        reached, alive = Counter(each.accepted for each in drafts), len(drafts)
        for slot in range(max(reached)):
            alive -= reached[slot]
            metrics.num_accepted_per_pos.labels(position=str(slot)).inc(alive)
        wasted = {
            "not_verified": drafted - verified,
            "rejected": verified - judged,
            "cut": judged - accepted,
        }
        for reason, count in wasted.items():
            if count:
                metrics.draft_wasted_tokens.labels(reason=reason).inc(count)

    def _tell_label(self, label: str, mine: Sequence[JudgedRound]) -> None:
        metrics, name = self._metrics, self._metrics.bounded_label(label)
        drafted = [len(each.said.confidence) for each in mine]
        metrics.label_rounds.labels(label=name).inc(sum(map(bool, drafted)))
        metrics.label_draft_tokens.labels(label=name).inc(sum(drafted))
        metrics.label_accepted_tokens.labels(label=name).inc(sum(each.accepted for each in mine))


class RoundMode(enum.Enum):
    """How a verifier runs its rounds, as metrics name it."""

    ONE = "one cohort"
    TWO = "two cohorts"
    PLAIN = "no drafts"


class RoundLearning:
    """Learns from the reported passes of one lane."""

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
        self._applied: list[ValidRounds] = []
        self._mode: RoundMode | None = None

    def note(self, applied: ValidRounds) -> None:
        self._applied.append(applied)

    def catch_up(self) -> bool:
        """Learns from all noted passes. Returns whether the plan may change by it."""
        applied, self._applied = self._applied, []
        learned = False
        for each in applied:
            self._monitor.observe(each.report.draws)
            if each.rounds:
                learned = True
                self._count(each)
                self._plans.learn(each)
                if self._drafters.observe(each.rounds, each.formed):
                    self._plans.drafters(self._drafters.costs())
        self._counts.tell()
        if learned:
            self._say_mode()
        return learned

    def show(self) -> None:
        """Puts the lane's mode and drafters into the metrics."""
        self._show_mode(self._mode)
        self._drafters.show()

    def hide(self) -> None:
        """Takes them out of the metrics."""
        self._show_mode(None)
        self._drafters.hide()

    def _count(self, applied: ValidRounds) -> None:
        metrics, timing = self._metrics, applied.report.timing
        metrics.cohorts.inc()
        metrics.verify_rpc.observe(timing.forward_s)
        if timing.waited_s > 0.0:
            metrics.draft_rpc.observe(timing.waited_s)
        if self._plans.in_force.cohorts == 1 and timing.round_s > 0.0:
            metrics.pipeline_bubble.observe(max(timing.round_s - timing.forward_s, 0.0))

    def _say_mode(self) -> None:
        """Shows operators the lane's mode, of an idle one the last; plans that try something do not
        change it."""
        found = self._plans.mode
        if found is None:
            return
        slots, cohorts = found
        mode = RoundMode.PLAIN if not slots else RoundMode.TWO if cohorts == 2 else RoundMode.ONE
        if mode is not self._mode:
            self._mode = mode
            self._show_mode(mode)

    def _show_mode(self, mode: RoundMode | None) -> None:
        for each in RoundMode:
            self._metrics.lane_mode.labels(lane=self._lane, mode=each.value).set(
                float(each is mode)
            )
