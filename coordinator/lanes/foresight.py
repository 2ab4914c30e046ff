"""What a lane's next rounds will look like: plans made while the verifier computes, and whether two cohorts could win.

A plan is for the sequences of the round before; whoever came since is drafted for unless the lane is plain. When most
of a cohort is new, or the lane's mode another one since, the plan is made when its round begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordinator.lanes.drafting import Drafting
from coordinator.lanes.feeding import Feeding
from coordinator.lanes.ports import DrafterPort
from coordinator.lanes.rounds import Turn, mean_context
from coordinator.lanes.track import Feed, Track
from coordinator.scheduling.choice import Bools
from coordinator.scheduling.pipelining import Mode
from coordinator.scheduling.planning import Cohort, Plan, Planner
from coordinator.scheduling.step_cost import StepCost
from dspark.rounds.policy import Columns

LENIENCE = 1.1  # two cohorts are tried when they are expected to take less than this much of one's time


def columns_of(turns: Sequence[Turn], feeding: Feeding, extra_tokens: float) -> Cohort:
    """A cohort in columns."""
    count = len(turns)
    tracks = [turn.track for turn in turns]
    return Cohort(
        sequence=np.fromiter((turn.cursor.sequence for turn in turns), np.uint64, count),
        round=np.fromiter((turn.cursor.round for turn in turns), np.uint64, count),
        row=np.fromiter((track.row for track in tracks), np.int64, count),
        weight=np.fromiter((track.request.weight for track in tracks), np.float64, count),
        policies=Columns.of([track.request.policy for track in tracks]),
        able=np.fromiter((feeding.reachable(track) for track in tracks), np.bool_, count),
        fed=np.fromiter((track.feed is Feed.FED for track in tracks), np.bool_, count),
        context=mean_context(turns),
        extra_tokens=extra_tokens,
    )


@dataclass(frozen=True, slots=True)
class Ahead:
    """A plan, whom it was made for (place in the plan by sequence number), and in which mode of the lane."""

    known: dict[int, int]
    plan: Plan
    mode: Mode


class Foresight:
    """Plans of one lane, by part."""

    def __init__(
        self,
        tracks: Mapping[int, Track],
        feeding: Feeding,
        drafting: Drafting,
        planner: Planner,
        cost: StepCost,
        hidden_s: Callable[[], float],
        mode: Callable[[], Mode],
    ) -> None:
        self._tracks, self._feeding, self._drafting = tracks, feeding, drafting
        self._planner, self._cost = planner, cost
        self._hidden_s = hidden_s  # seconds of a draft that pass behind another cohort's step
        self._mode = mode
        self._ahead: dict[int, Ahead] = {}  # by part

    def planned(self, part: int, turns: Sequence[Turn]) -> Plan:
        """The plan that was made during the last step; a new one when it was for others, or for another mode."""
        ahead = self._ahead.pop(part, None)
        known = ahead.known if ahead is not None and ahead.mode is self._mode() else {}
        if ahead is None or 2 * sum(turn.cursor.sequence in known for turn in turns) <= len(turns):
            return self._plan(columns_of(turns, self._feeding, 0.0))
        count, plan = len(turns), ahead.plan
        places = [known.get(turn.cursor.sequence, -1) for turn in turns]
        if places == list(range(len(plan.able))):
            return plan  # nobody came, nobody left
        at, new = np.array(places), np.array(places) < 0

        def spread(column: Bools, otherwise: bool) -> Bools:
            return np.where(new, otherwise, column[at]) if count else column

        newcomers = not self._planner.goes_plain or plan.probe
        return replace(
            plan,
            able=spread(plan.able, True),
            drafted=spread(plan.drafted, newcomers),
            resting=spread(plan.resting, False),
        )

    def _plan(self, cohort: Cohort) -> Plan:
        hidden_s = self._hidden_s()
        able = Counter(track.drafter for track in self._tracks.values() if track.drafter is not None)
        share_of_lane = len(cohort.row) / max(len(self._tracks), 1)

        def draft_seconds(share: float, slots: int) -> float:
            asked = {
                drafter: max(round(share * share_of_lane * count), 1) for drafter, count in able.items() if share > 0.0
            }
            return max(self._drafting.would_take(asked, cohort.context, slots) - hidden_s, 0.0)

        return self._planner.plan(cohort, draft_seconds)

    def plan_ahead(self, part: int, turns: Sequence[Turn], cohort: Cohort) -> None:
        """The next round of these sequences, by what is known before this one is judged."""
        able = np.fromiter((self._feeding.reachable(turn.track) for turn in turns), np.bool_, len(turns))
        fed = np.fromiter((turn.track.feed is Feed.FED for turn in turns), np.bool_, len(turns))
        row = np.fromiter((turn.track.row for turn in turns), np.int64, len(turns))
        if (row < 0).any():
            return  # somebody ended: the next round is planned when it begins
        after = replace(cohort, round=cohort.round + np.uint64(1), able=able, fed=fed, row=row)
        known = {turn.cursor.sequence: place for place, turn in enumerate(turns)}
        self._ahead[part] = Ahead(known, self._plan(after), self._mode())

    def two_could_win(self, turns: Sequence[Turn], context: float, asked: Mapping[DrafterPort, Sequence[Turn]]) -> bool:
        """Whether halves that overlap are expected to come near one cohort: the model of the design, leniently.

        Where drafts do not pay because a round waits for them, nobody is asked for any; halves would not wait.
        """
        if not asked:
            return self._planner.goes_plain and self._planner.overlap_pays()
        if self._cost.verify is None:
            return True
        tokens = float(len(turns) + sum(turn.prefix for turn in turns))
        counts = {drafter: len(its) for drafter, its in asked.items()}
        slots = max(turn.slots for its in asked.values() for turn in its)

        def draft_s(share: float) -> float:
            some = {drafter: max(round(share * count), 1) for drafter, count in counts.items()}
            return self._drafting.would_take(some, context, slots)

        rest, slower = self._cost.speculative.seconds, self._cost.slower_beside
        half = slower * self._cost.verify.seconds(tokens / 2.0, context, len(turns) / 2.0)
        two = max(2.0 * half, half + slower * draft_s(0.5) + rest)
        return two < LENIENCE * (self._cost.verify.seconds(tokens, context, len(turns)) + draft_s(1.0) + rest)
