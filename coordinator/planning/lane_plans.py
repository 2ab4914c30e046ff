"""Plans of a lane whose sequences have several policies, and what the planner learns from reported
passes. Pure.

`off`, `fixed` and `threshold` are terms of a sequence's own. All adaptive sequences share what
`Planner` finds; without a measured cost curve the verifier verifies whatever they draft.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordinator.planning.cost import CostCorrector, CostCurve, RunningRatio
from coordinator.planning.options import OtherSequences, PlannedLane
from coordinator.planning.planner import Planner, ValidRounds
from dspark.rounds.plan import PLAIN, BlockTerms, Plan, PlanKind, SequencePlan
from dspark.rounds.policy import Adaptive, Fixed, Policy, Threshold

HOP_S = 2e-3  # hop time of a drafted round, before any was measured
SLOT_SHARE = 0.4  # share of a draft pass's time that grows with its slots


@dataclass(frozen=True, slots=True)
class DrafterCost:
    """Cost of one drafter, for plans."""

    block: int  # slots
    curve: CostCurve | None  # sequences -> seconds of whole blocks
    shares: bool = True  # it gets its part of a lane's sequences; else one at most


@dataclass(slots=True, eq=False)
class Planned:
    """A sequence that takes part in rounds. Its owner sets `key` and `drafted`."""

    number: int
    policy: Policy
    weight: float
    key: Hashable = ""  # drafter and bucket, by which acceptance is tracked
    own: BlockTerms | None = None  # terms that follow from its policy; None: the planner's
    drafted: bool = False  # a drafter is assigned
    tries: bool = False  # its drafter is on trial


class LanePlans:
    """The plans of one lane. cohorts: 1 or 2, or 0 for whichever is faster."""

    def __init__(
        self, verify: CostCurve | None, *, window: int = 2, cohorts: int = 0, bypass: bool = True
    ) -> None:
        self.window, self._cohorts = window, (1, 2) if cohorts == 0 else (cohorts,)
        self._verify, self._bypass = verify, bypass
        self._members: dict[int, Planned] = {}
        self._drafters: Sequence[DrafterCost] = ()
        self.block = 0  # slots of the longest blocks
        self._planner: Planner | None = None
        self._adaptive: Plan | None = None  # the planner's last
        self._verified = 0.0  # recent mean of a drafted block's verified slots
        self._context = 1.0
        self.in_force = Plan()  # what a verifier begins with

    def drafters(self, drafters: Sequence[DrafterCost]) -> None:
        """Sets the drafters of this lane. Without any, the last ones stay: a drafter out of reach
        may still draft, under the old terms and at the old cost."""
        if not drafters:
            return
        self._drafters, self.block = drafters, max(each.block for each in drafters)
        if self._verify is not None and (self._planner is None or self.block > self._planner.block):
            cost = CostCorrector(self._verify, self._draft_s, RunningRatio(HOP_S))
            self._planner = Planner(cost, self.block, bypass=self._bypass)
        elif self._planner is not None:
            self._planner.renew()
        for member in self._members.values():
            member.own = self._terms(member)

    def add(self, member: Planned) -> None:
        self._members[member.number] = member
        member.own = self._terms(member)

    def tries(self, member: Planned, tries: bool) -> None:
        """Sets whether a sequence's drafter is on trial: it then drafts whole blocks, whatever they
        promise, so that a trial is short, even where drafting for one of many does not pay."""
        if member.tries is not tries:
            member.tries = tries
            member.own = self._terms(member)

    def remove(self, number: int) -> None:
        self._members.pop(number, None)

    def _terms(self, member: Planned) -> BlockTerms | None:
        policy, weight = member.policy, member.weight
        if isinstance(policy, Fixed):
            return BlockTerms(PlanKind.FIXED, policy.slots, 0.0, weight)
        if isinstance(policy, Threshold):
            return BlockTerms(PlanKind.THRESHOLD, self.block, policy.at, weight)
        if not isinstance(policy, Adaptive):
            return PLAIN
        if self._verify is None or member.tries:
            return BlockTerms(PlanKind.FIXED, self.block, 0.0, weight)
        return None

    def _draft_s(self, sequences: float, slots: int) -> float:
        """Seconds of a draft pass, sequences dealt out evenly to the drafters that share them."""
        shares, slowest = max(sum([each.shares for each in self._drafters]), 1), 0.0
        for each in self._drafters:
            if each.curve is not None and slots:
                mine = sequences / shares if each.shares else 1.0
                whole_s = each.curve.measured(mine, self._context)
                part = 1.0 - SLOT_SHARE + SLOT_SHARE * min(slots / max(each.block, 1), 1.0)
                slowest = max(slowest, part * whole_s)
        return slowest

    # From reports.

    def learn(self, applied: ValidRounds) -> None:
        """Learns cost and acceptance from one pass, of a round at least."""
        report, rounds = applied.report, applied.rounds
        self._context = max(report.context, 1.0) if math.isfinite(report.context) else self._context
        drafted = [each.verified for each in rounds if len(each.confidence)]
        if drafted:
            self._verified += 0.1 * (sum(drafted) / len(drafted) - self._verified)
        if self._planner is None:
            return
        self._planner.learn(
            applied,
            self._context,
            cohorts=self.in_force.cohorts,
            together=len(self._members),
            drafted=any(each.confidence and self._adapts(each.sequence) for each in rounds),
        )

    def _adapts(self, sequence: int) -> bool:
        """Whether the planner chooses the terms of a sequence."""
        member = self._members.get(sequence)
        return member is not None and member.own is None

    # Plans.

    def replan(self) -> None:
        """Plans the adaptive sequences anew, from what was learned."""
        if self._planner is None:
            return
        adaptive, others = list[Planned](), list[Planned]()
        for each in self._members.values():
            (adaptive if each.own is None and each.drafted else others).append(each)
        if not adaptive:
            self._adaptive = None
            return
        drafting, slots = self._drafted_own()
        more = drafting * self._verified
        self._adaptive = self._planner.next(
            PlannedLane(
                [each.number for each in adaptive],
                [each.key for each in adaptive],
                np.fromiter((each.weight for each in adaptive), np.float64, len(adaptive)),
                self._context,
                cohorts=self._cohorts,
                others=OtherSequences(
                    len(others),
                    len(others) + more,
                    min(slots, self.block),
                    sum(each.weight for each in others) + more,
                    drafting,
                ),
            )
        )

    def compose(self, drafters: Mapping[int, int]) -> Plan | None:
        """The plan for all sequences, in force from now on; None if the one in force says the same.

        drafters: number by sequence, where a sequence's drafter changes (0: none).
        """
        plan = self._adaptive or Plan()
        sequences = dict(plan.sequences)
        for member in self._members.values():
            if member.own is not None and member.own != plan.terms:
                sequences[member.number] = SequencePlan(member.own)
        for number, drafter in drafters.items():
            sequences[number] = sequences.get(number, SequencePlan())._replace(drafter=drafter)
        own_draft_s, cohorts = self._by_themselves()
        composed = Plan(
            plan.terms,
            cohorts or plan.cohorts,
            self.window,
            max(plan.draft_s, own_draft_s),
            sequences,
        )
        if not differs(self.in_force, composed):
            return None
        self.in_force = composed
        return composed

    def covers(self, member: Planned) -> bool:
        """Whether the plan in force holds for a new sequence without naming it. An adaptive one may
        change what pays for all."""
        return member.own == self.in_force.terms

    @property
    def curve(self) -> tuple[list[tuple[float, float]], float] | None:
        """See `Planner.curve`."""
        return self._planner.curve if self._planner is not None else None

    @property
    def mode(self) -> tuple[int, int] | None:
        """(slots, cohorts) of the planner's best option, or in force if no adaptive one drafts;
        None while nothing runs."""
        if not self._members:
            return None
        if self._planner is not None and self._adaptive is not None:
            return self._planner.home
        return self._drafted_own()[1], self.in_force.cohorts

    def _drafted_own(self) -> tuple[int, int]:
        """(drafting sequences with terms of their own, slots of the longest of their blocks)."""
        count = longest = 0
        for each in self._members.values():
            if each.drafted and each.own is not None and each.own.slots:
                count, longest = count + 1, max(longest, each.own.slots)
        return count, longest

    def _by_themselves(self) -> tuple[float, int]:
        """(draft seconds of sequences with own terms, their cohorts; 0 if the planner chooses)."""
        own, longest = self._drafted_own()
        slots = min(longest, self.block)
        if not slots or self._planner is None:
            return 0.0, self._cohorts[0] if len(self._cohorts) == 1 and slots else 0
        cost, count = self._planner.cost, len(self._members)
        draft_s = cost.draft_s(own, slots) + cost.hop.value
        if self._adaptive is not None:
            return draft_s, 0
        able = [each for each in self._cohorts if each <= count]
        if len(able) < 2:
            return draft_s, able[0] if able else 1
        tokens = np.array([count + own * self._verified])
        return draft_s, min(
            able,
            key=lambda each: float(cost.round_s(tokens, self._context, count, own, slots, each)[0]),
        )


def differs(one: Plan, other: Plan) -> bool:
    """Whether plans differ in more than a little in expected draft seconds."""
    far = abs(one.draft_s - other.draft_s) > 0.2 * max(one.draft_s, other.draft_s)
    return far or replace(one, draft_s=other.draft_s) != other
