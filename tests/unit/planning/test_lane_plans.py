"""Plans of lanes whose sequences go by several policies, and what reported passes teach."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from coordinator.planning.cost import CostCurve
from coordinator.planning.lane_plans import HOP_S, DrafterCost, LanePlans, Planned, differs
from coordinator.planning.options import (
    EVERY,
    LaneOptions,
    OtherSequences,
    PlannedLane,
)
from coordinator.planning.planner import Planner, ValidRounds, _labels
from dspark.rounds.control import PassReport, Timing
from dspark.rounds.events import Report, RoundReport
from dspark.rounds.plan import BlockTerms, Plan, PlanKind
from dspark.rounds.policy import parse_policy
from tests.rounds_cell import with_rows
from tests.unit.planning.rounds_of import COSTS, SIZES, lane, learn, planner_of

GPU = COSTS["gpu"]
DRAFT = CostCurve([1, 64], [128], [0.002, 0.003])


def planned(number: int, policy: str, *, weight: float = 1.0, drafted: bool = True) -> Planned:
    return Planned(number, parse_policy(policy), weight, 0, drafted=drafted)


def plans(
    *policies: str, curve: CostCurve | None = None, drafters: int = 1, **settings: object
) -> LanePlans:
    """Of sequences 1, 2 ... of these policies."""
    made = LanePlans(curve or GPU.curve(), **settings)
    made.drafters([DrafterCost(7, DRAFT)] * drafters)
    for number, policy in enumerate(policies, 1):
        made.add(planned(number, policy))
    return made


def told(made: LanePlans, drafters: Mapping[int, int] | None = None) -> Plan:
    """What is in force behind the next plan, if there is one."""
    made.compose(drafters or {})
    return made.in_force


def replanned(made: LanePlans) -> Plan:
    """The same of terms that are computed anew."""
    made.replan()
    return told(made)


def report(rounds: int = 1) -> ValidRounds:
    """A pass of two sequences, with whole blocks."""
    rows = [RoundReport(number, 0, 1, 100, (1,) * 6, 5, 7, (0.9,) * 7, "", 1) for number in (1, 2)]
    said = PassReport(Report(rounds, rows), Timing(0.02, 0.025, 0.003, 0.004), 128.0, 16)
    return ValidRounds(said, rows, [0, 0], [1.0, 1.0], [False, False])


def test_each_policy_has_its_terms_and_adaptive_ones_share_the_planner_s() -> None:
    made = plans("adaptive", "fixed:3", "threshold:0.4", "off", "adaptive")
    plan = replanned(made)
    assert plan.terms.kind is PlanKind.PRICE
    assert plan.terms_of(1) == plan.terms_of(5) == plan.terms
    assert plan.terms_of(2) == BlockTerms(PlanKind.FIXED, 3)
    assert plan.terms_of(3) == BlockTerms(PlanKind.THRESHOLD, 7, 0.4)
    assert plan.terms_of(4).kind is PlanKind.OFF
    made.remove(2)
    assert 2 not in told(made).sequences


def test_the_planner_is_told_whether_its_own_sequences_drafted() -> None:
    made, seen = plans("adaptive", "fixed:7"), list[bool]()
    made._planner.learn = lambda *_, drafted, **__: seen.append(drafted)
    for plain in ((), (0,), (1,), (0, 1)):
        done = report()
        for place in plain:
            done.rounds[place] = done.rounds[place]._replace(confidence=())
        made.learn(done)
    assert seen == [True, False, True, False]


def test_drafters_are_named_in_the_plan_that_changes_them_and_not_again() -> None:
    made = plans("adaptive", "fixed:3")
    made.replan()
    named = told(made, {1: 4, 2: 0})
    assert (named.of(1).drafter, named.of(2).drafter) == (4, 0)
    assert named.terms_of(2).slots == 3
    again = told(made)
    assert (again.of(1).drafter, again.of(2).drafter) == (None, None)
    assert differs(named, again)


def test_without_a_cost_curve_adaptive_sequences_verify_what_they_draft() -> None:
    made = LanePlans(None)
    made.drafters([DrafterCost(5, None)])
    made.add(planned(1, "adaptive", weight=2.0))
    assert replanned(made).terms_of(1) == BlockTerms(PlanKind.FIXED, 5, 0.0, 2.0)


@pytest.mark.parametrize("curve", [None, GPU.curve()])
@pytest.mark.parametrize("policy", ["adaptive", "threshold:0.4"])
def test_a_drafter_that_comes_late_is_planned_for(policy: str, curve: CostCurve | None) -> None:
    made = LanePlans(curve)
    made.add(planned(1, policy))
    assert replanned(made).terms_of(1).slots == 0
    made.drafters([DrafterCost(5, None)])
    assert replanned(made).terms_of(1).slots == 5
    made.drafters([])
    assert replanned(made).terms_of(1).slots == 5, (
        "out of reach here, and maybe not for the verifier"
    )


def test_a_drafter_out_of_reach_that_drafts_on_costs_what_it_did() -> None:
    made = plans("adaptive", "adaptive")
    for number in range(40):
        made.learn(report(number))
    before = made._planner.cost.draft_s(2.0, 7)
    made.drafters([])
    for number in range(40, 200):
        made.learn(report(number))
    made.drafters([DrafterCost(7, DRAFT)])
    assert made._planner.cost.draft_s(2.0, 7) == pytest.approx(before, rel=0.2)


def test_what_others_bring_along_is_in_the_plan_of_adaptive_ones() -> None:
    def planned(others: OtherSequences) -> tuple[float, int]:
        planner = planner_of(GPU, explore=0.0)
        planner.next(dataclasses.replace(lane(1, cohorts=1), others=others))
        return planner._last.rate, planner.home[0]

    alone, beside = (
        planned(OtherSequences()),
        planned(OtherSequences(63, 63 + 200.0, 7, 63 + 150.0, 63)),
    )
    assert beside[0] > 20 * alone[0], "tokens of all"
    assert planned(OtherSequences(63, 63 + 4000.0, 7, 63.0, 63))[0] < beside[0], (
        "and what they take"
    )


def test_one_who_is_drafted_for_among_many_who_are_not_pays_for_its_own_draft() -> None:
    costs = dataclasses.replace(GPU, draft_s=lambda n, k: 1e-3 * n, hop_s=1e-4)

    def slots(others: OtherSequences) -> int:
        planner = planner_of(costs, explore=0.0)
        planner.next(dataclasses.replace(lane(1, cohorts=1), others=others))
        return planner.home[0]

    assert slots(OtherSequences(7, 7.0, 0, 7.0)) > 0
    assert slots(OtherSequences(7, 7.0, 1, 7.0, 7)) > 0, "the others' drafts are made anyhow"


def test_terms_of_those_that_nobody_drafts_for_make_no_cohorts_and_no_draft() -> None:
    curve = CostCurve(SIZES, [128], [1e-3 + 2e-4 * size for size in SIZES])
    made = plans(curve=curve)
    members = [planned(number, "fixed:7") for number in range(1, 65)]
    for each in members:
        made.add(each)
    drafted = told(made)
    assert (drafted.cohorts, made.mode) == (2, (7, 2))
    for each in members:
        each.drafted = False
    plain = told(made)
    assert (plain.cohorts, plain.draft_s, made.mode) == (1, 0.0, (0, 1))


@pytest.mark.parametrize(("cohorts", "expected"), [(1, {1}), (2, {2}), (0, {1, 2})])
def test_cohorts_are_as_told_or_whichever_is_faster(cohorts: int, expected: set[int]) -> None:
    seen = set()
    for streams in (1, 64):
        made = plans(*["fixed:5"] * streams, cohorts=cohorts)
        seen.add(replanned(made).cohorts)
    assert seen <= expected | {1}
    assert expected <= seen or cohorts == 0


@pytest.mark.parametrize(("members", "seen"), [(4, 1), (2, 0)])
def test_a_pass_of_one_of_two_cohorts_says_what_both_take_and_one_of_all_says_nothing(
    members: int, seen: int
) -> None:
    """The report has two sequences."""
    made = plans(*["fixed:7"] * members, cohorts=2)
    told(made)
    assert made.in_force.cohorts == 2
    cost = made._planner.cost
    made.learn(report())
    assert cost.paired.seen == 0, "the first of its kind"
    made.learn(report())
    assert cost.paired.seen == seen
    assert [each.seen for each in (cost.hop, cost.plain, cost.drafted, cost.drafting)] == [0] * 4


def test_chances_are_read_by_row_and_slot_and_left_out_where_they_do_not_fit() -> None:
    applied = report()
    rows = [row._replace(verified=count) for row, count in zip(applied.rounds, (2, 3), strict=True)]
    told = np.arange(10, dtype=np.float32).reshape(5, 2)
    said = with_rows(applied.report, rows)._replace(labels=told)
    grid = _labels(said, rows, 7)
    assert grid[0, :2].tolist() == [[0, 1], [2, 3]]
    assert grid[1, :3].tolist() == [[4, 5], [6, 7], [8, 9]]
    assert np.isnan(grid[0, 2:]).all()
    assert _labels(said, rows[:1], 7) is None, "somebody was left out"
    assert _labels(said._replace(labels=told[:4]), rows, 7) is None


def test_a_plan_that_differs_in_draft_seconds_alone_is_told_where_it_is_by_much() -> None:
    one = Plan(BlockTerms(PlanKind.FIXED, 3), 1, 2, 0.010)
    assert not differs(one, dataclasses.replace(one, draft_s=0.011))
    assert differs(one, dataclasses.replace(one, draft_s=0.020))


def test_a_plan_that_is_not_told_is_not_what_the_next_one_is_compared_with() -> None:
    made = plans("fixed:5", "fixed:5")
    first = made.compose({})
    hop, slow = made._planner.cost.hop, None
    for step in range(1, 200):  # each a little slower than the last
        hop.value = HOP_S * 1.05**step
        if (slow := made.compose({})) is not None:
            break
        assert made.in_force is first
    assert step > 2
    assert differs(first, slow)


def test_whoever_tries_a_drafter_drafts_whole_blocks_and_is_one_of_the_others_meanwhile() -> None:
    """One of many: what it may gain is no reason to draft, and a trial by the planner's terms would
    take for ever."""
    made = plans()
    first, *others = (planned(number, "adaptive", drafted=number == 1) for number in range(1, 33))
    for each in (first, *others):
        made.add(each)
    made.tries(first, True)
    assert replanned(made).terms_of(1) == BlockTerms(PlanKind.FIXED, 7)
    assert told(made).terms_of(2).kind is PlanKind.OFF
    made.tries(first, False)
    assert replanned(made).terms_of(1).kind is not PlanKind.FIXED


def test_a_drafter_that_gets_nobody_takes_no_part_of_the_drafts() -> None:
    """All but the one that tries it go to the other, whose passes are as long as they are."""
    slow = CostCurve([1, 64], [128], [0.001, 0.1])
    alone, beside, shared = (plans(*["fixed:7"] * 64, drafters=each) for each in (1, 1, 2))
    beside.drafters([DrafterCost(7, DRAFT), DrafterCost(7, slow, shares=False)])
    assert told(alone).draft_s == told(beside).draft_s > told(shared).draft_s


def test_a_lane_is_looked_at_anew_every_few_plans_and_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[PlannedLane] = []
    computed = LaneOptions._computed
    monkeypatch.setattr(
        LaneOptions, "_computed", lambda self, lane: looked.append(lane) or computed(self, lane)
    )
    planner, two = planner_of(GPU), lane(2)

    def looks(one: PlannedLane, plans: int = 1) -> int:
        before = len(looked)
        for _ in range(plans):
            planner.next(one)
        return len(looked) - before

    assert looks(two, 10 * EVERY) == 10
    changes: list[dict[str, object]] = [
        {"keys": ["d", "e"]},
        {"weight": np.array([1.0, 2.0])},
        {"context": 900.0},
        {"cohorts": (1,)},
        {"others": OtherSequences(1, 4.0, 3, 2.0, 1)},
        {"sequences": [1, 2, 3], "keys": ["d"] * 3, "weight": np.ones(3)},
    ]
    for change in changes:
        assert looks(dataclasses.replace(two, **change)) == 1, change
        assert looks(two) == 1
    assert looks(two) == 0
    planner.renew()
    assert looks(two) == 1


def test_a_lane_is_planned_by_blocks_of_the_kinds_that_are_in_it() -> None:
    """As of answers in a form, of which drafters know nothing, behind free ones; of an unknown kind
    by all."""
    planner = planner_of(GPU, explore=0.0)
    for _ in range(30):
        for _ in range(2):
            learn(planner, np.zeros((4, 0)), 0, 0, (0.01, 0.011, 0.0))
        _drafted(planner, 4, sure=0.9)
        _drafted(planner, 4, sure=0.01, key="formed")
    slots = {
        kinds: planner.next(dataclasses.replace(lane(4), keys=kinds)).terms.slots
        for kinds in (("d",) * 4, ("formed",) * 4, ("d", "d", "d", "formed"), ("new",) * 4)
    }
    assert slots[("d",) * 4] > 0 == slots[("formed",) * 4]
    assert slots[("d", "d", "d", "formed")] == slots[("new",) * 4]


def _drafted(planner: Planner, count: int, *, sure: float = 0.5, key: str = "d") -> None:
    """A pass of whole blocks that were promised and accepted alike."""
    accepted, seconds = round(2 * sure), (0.01, 0.015, 0.003)
    learn(planner, np.full((count, 7), sure), 2, accepted, seconds, keys=[key] * count)


def test_other_drafters_make_a_lane_be_looked_at_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plans("adaptive")
    made.replan()
    renewed: list[Planner] = []
    monkeypatch.setattr(Planner, "renew", lambda self: renewed.append(self))
    made.drafters([DrafterCost(7, DRAFT)] * 2)
    assert len(renewed) == 1
