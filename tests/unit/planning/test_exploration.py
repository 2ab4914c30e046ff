"""What plans try now and then of what they think does not pay."""

import dataclasses

import numpy as np
import pytest

from coordinator.planning.exploration import IN_A_ROW, WAITED
from coordinator.planning.planner import Planner
from dspark.rounds.plan import PLAIN, BlockTerms, Plan
from tests.unit.planning.rounds_of import (
    COSTS,
    HARD,
    SLOTS,
    Costs,
    lane,
    learn,
    planned,
    planner_of,
)


def of_drafts(plan: Plan) -> BlockTerms:
    """The terms of those that draft; of no slots without one."""
    return next((each.terms for each in plan.sequences.values() if each.terms), plan.terms)


def passed(planner: Planner, costs: Costs, sequences: int, slots: int) -> None:
    """A pass of poor blocks, of which nothing was verified."""
    took, drafted_s = costs.verify_s(sequences), costs.draft_s(sequences, slots)
    between_s = drafted_s + costs.hop_s if slots else 0.0
    seconds = (took, took + between_s, drafted_s * bool(slots))
    learn(planner, np.full((sequences, slots), 0.2), 0, 0, seconds, drafted=bool(slots))


def mostly_plain(costs: Costs = COSTS["cpu"], kinds: tuple[float, ...] = HARD) -> Planner:
    """Of a lane of 8 that has found that drafts do not pay."""
    _, planner, _ = planned(costs, kinds, 8, 300)
    assert planner.home == (0, 1)
    return planner


def tried(costs: Costs, plans: int, cohorts: int = 1) -> list[Plan]:
    """Of a lane whose drafts are poor."""
    planner, made, slots = planner_of(costs), list[Plan](), SLOTS
    for _ in range(plans):
        passed(planner, costs, 64, slots)
        made.append(planner.next(lane(64, cohorts)))
        slots = of_drafts(made[-1]).slots
    return made


def test_plans_try_something_now_and_then_by_a_key_and_rarely_where_it_is_dear() -> None:
    dear = [of_drafts(plan).slots for plan in tried(COSTS["cpu"], 9000)]
    assert dear[:400] == [of_drafts(plan).slots for plan in tried(COSTS["cpu"], 400)], (
        "the same keys, the same plans"
    )
    assert 0 < np.count_nonzero(dear) < 900
    assert dear.count(SLOTS) > 0, "whole blocks, too"


@pytest.mark.parametrize(
    ("keys", "few"),
    [
        (["d"] * 3, [0, 1]),
        (["d"] * 16, [0, 1, 2, 3]),
        (["a", "a", "a", "b", "b", "b", "c"], [0, 1, 3, 4, 6]),
    ],
)
def test_out_of_plain_rounds_a_try_drafts_for_some_of_each_kind_and_one_in_four(
    keys: list[str], few: list[int]
) -> None:
    """Each of them has to be sent its context first."""
    planner = mostly_plain()
    one = dataclasses.replace(lane(len(keys), cohorts=1), keys=keys)
    plans = [planner.next(one) for _ in range(3000)]
    tries = {tuple(plan.sequences) for plan in plans if plan.sequences}
    assert tries == {tuple(few)}
    assert {plan.terms for plan in plans} == {PLAIN}


@pytest.mark.parametrize(("comes_after", "lasts"), [(0, IN_A_ROW), (5, 6), (99, WAITED)])
def test_a_try_lasts_until_its_rows_came_and_no_longer_than_they_are_waited_for(
    comes_after: int, lasts: int
) -> None:
    """Rounds stay plain until a drafter has the rows, which may be never."""
    planner, runs, run = mostly_plain(), list[int](), 0
    for _ in range(6000):
        slots = of_drafts(planner.next(lane(8, cohorts=1))).slots
        if run and not slots:
            runs.append(run)
        run = run + 1 if slots else 0
        passed(planner, COSTS["cpu"], 8, slots if run > comes_after else 0)
    assert len(runs) > 3
    assert {run % lasts for run in runs} == {0}, "of one behind another, too"


def test_what_is_tried_for_one_plan_keeps_the_cohorts_in_force() -> None:
    plans = tried(COSTS["cpu"], 3000, cohorts=2)
    assert sum(of_drafts(plan).slots == 0 for plan in plans) > 2500
    assert {plan.cohorts for plan in plans if of_drafts(plan).slots} == {1}, (
        "two would find no round to hide a draft in"
    )
