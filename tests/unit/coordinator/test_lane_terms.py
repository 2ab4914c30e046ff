"""What a lane plans for its sequences, and what it shows of that, in simulated time."""

import asyncio
import itertools

import pytest

from coordinator.lanes.request_state import RequestState
from coordinator.lanes.round_learning import RoundMode
from coordinator.planning.watchdog import Alarm
from coordinator.watching import explaining
from dspark.rounds.control import Admission
from dspark.rounds.plan import BlockTerms, Plan, PlanKind
from dspark.runtime.telemetry import MOST_LABELS
from dspark.types import Constraint, ConstraintKind, SamplingParams
from tests.rounds_cell import RoundsCell, costs


async def test_answers_in_a_form_are_planned_for_by_what_was_drafted_under_forms() -> None:
    cell, form = RoundsCell(), Constraint(ConstraintKind.REGEX, "[0-9]*")
    for seed, constraint in enumerate((None, form, None, form)):
        cell.ask(
            (seed, 3), max_tokens=400, params=SamplingParams(temperature=0.0, constraint=constraint)
        )
    members = cell.lane._members
    await cell.until(lambda: len(members) == 4 and all(placed.drafter for placed in members))
    kinds = [(placed.state.request.params.constraint, placed.planned.key) for placed in members]
    assert len({key for _, key in kinds}) == len(set(kinds)) == 2


def modes(cell: RoundsCell, lane: str) -> list[float | None]:
    value = cell.metrics.registry.get_sample_value
    return [value("dspark_lane_mode", {"lane": lane, "mode": mode.value}) for mode in RoundMode]


async def test_a_lane_that_closes_leaves_the_metrics_of_the_next_one_of_its_name(
    cell: RoundsCell,
) -> None:
    name, value = cell.lane.facts.name, cell.metrics.registry.get_sample_value

    def shown() -> list[float | None]:
        rest = ("dspark_cost_curve_in_force", "dspark_drafters_left_out")
        return [*modes(cell, name), *(value(each, {"lane": name}) for each in rest)]

    next(iter(cell.lane._drafters._by_number.values())).watch.alarm = Alarm.COLLAPSE
    cell.lane._drafters.show()
    lane = cell.add_verifier(name)
    lane._learning._mode = RoundMode.ONE
    lane._learning.show()
    cell.lose_verifier()
    assert shown() == [float(mode is RoundMode.ONE) for mode in RoundMode] + [1.0, 0.0]
    last = cell.add_verifier(name)
    assert shown() == [0.0] * len(RoundMode) + [1.0, 0.0]
    cell.lose_verifier(cell.lanes.index(last))
    assert shown() == [float(mode is RoundMode.ONE) for mode in RoundMode] + [1.0, 0.0]
    cell.lose_verifier()
    assert shown() == [0.0] * len(RoundMode) + [None, 0.0]
    assert cell.lanes == []


@pytest.mark.parametrize("policy", ["adaptive", "fixed:3", "off"])
async def test_an_idle_lane_shows_how_it_ran(cell: RoundsCell, policy: str) -> None:
    await cell.answered(cell.ask(max_tokens=60, policy=policy))
    ran = RoundMode.PLAIN if policy == "off" else RoundMode.ONE
    assert modes(cell, cell.lane.facts.name) == [float(mode is ran) for mode in RoundMode]


async def test_labels_beyond_those_kept_apart_are_planned_for_together() -> None:
    cell = RoundsCell(max_running=80)
    states = [cell.ask(label=f"label{number}") for number in range(MOST_LABELS + 20)]
    kinds = set[str]()

    def over() -> bool:
        kinds.update(placed.planned.key for placed in cell.lane._members if placed.admitted)
        return all(state.sequence.finished for state in states)

    await cell.until(over)
    assert 20 < len(kinds) <= MOST_LABELS + 1


def terms_before(cell: RoundsCell, number: int) -> BlockTerms:
    """Of a sequence, by the last plan that was told before its admission."""
    told = itertools.takewhile(
        lambda e: not (isinstance(e, Admission) and e.admit.sequence == number), cell.port.told
    )
    return [each for each in told if isinstance(each, Plan)][-1].terms_of(number)


async def test_a_plan_is_told_once_and_names_a_newcomer_with_terms_of_its_own(
    cell: RoundsCell,
) -> None:
    state = cell.ask(max_tokens=60, policy="fixed:2")
    await cell.finish(state)
    plans = cell.port.orders(Plan)
    terms = terms_before(cell, state.sequence.number)
    assert (terms.kind, terms.slots) == (PlanKind.FIXED, 2)
    assert len(plans) < 6, "nothing changes, so nothing is said"
    cell.ask((8, 9), max_tokens=60, policy="off")
    await asyncio.sleep(0.1)
    another = cell.ask((3, 3), max_tokens=20, policy="fixed:1")
    await cell.finish(another)
    assert terms_before(cell, another.sequence.number).slots == 1


@pytest.mark.parametrize("cohorts", [1, 2])
async def test_as_many_cohorts_take_turns_as_is_said(cohorts: int) -> None:
    cell = RoundsCell(cohorts=cohorts)
    await cell.finish(*(cell.ask((at, 3), max_tokens=40, policy="fixed:2") for at in range(4)))
    drafting = [each for each in cell.port.orders(Plan) if each.sequences]
    assert max(each.cohorts for each in drafting) == cohorts


async def test_where_drafts_do_not_pay_rows_of_a_few_are_sent_until_drafts_pay() -> None:
    cell = RoundsCell(sink=1 << 20, draft_ms=40)

    def ask(many: range) -> list[RequestState]:
        return [cell.ask((seed, 6), max_tokens=4000) for seed in many]

    def fed(states: list[RequestState]) -> int:
        at_drafter = {sequence for _, sequence, _ in cell.drafters[0].rows}
        return sum(state.sequence.number in at_drafter for state in states)

    for state in ask(range(16)):
        await cell.until(lambda state=state: state.stats.rounds > 0)
    await cell.until(lambda: not cell.port.orders(Plan)[-1].terms.drafts)
    cell.admission.cut_all()
    await cell.until(lambda: len(cell.lane) == 0)
    states = ask(range(16))
    with cell.explain.request(states[-1].request.id) as watch:
        await cell.until(lambda: fed(states) > 0, within_s=300.0, each_s=0.1)
        await cell.until(lambda: states[-1].stats.rounds >= 300)
        assert fed(states) == 4, "to try drafts with"
        assert {explaining.told(part).empty_because for part in watch.taken()} == {"bypass"}
    assert not cell.metrics.value("empty_blocks_total", reason="no_drafter"), "nobody is missing"
    others = [
        cell.ask((seed, 7), max_tokens=4000, params=SamplingParams(temperature=1.0))
        for seed in range(4)
    ]
    await cell.until(lambda: fed(others) > 0, within_s=300.0, each_s=0.1)
    assert fed(others) == 2, "drafts of another kind are tried, too"
    cell.world.spec = costs(draft_ms=0.1)
    await cell.until(lambda: fed(states) == len(states), within_s=300.0, each_s=0.1)


async def test_weights_of_requests_reach_the_terms_of_their_blocks(cell: RoundsCell) -> None:
    states = [cell.ask((seed, 3), max_tokens=60, weight=1.0 + 2.0 * seed) for seed in (0, 1)]
    await cell.finish(*states)
    weights = {
        tuple(round(each.terms_of(state.sequence.number).weight, 3) for state in states)
        for each in cell.port.orders(Plan)
        if each.terms.kind is PlanKind.PRICE
    }
    assert any(second == pytest.approx(3.0 * first) for first, second in weights)
