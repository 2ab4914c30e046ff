"""Drafters of a lane come, go, are left out and are tried again, in simulated time."""

import asyncio
from typing import Any

import pytest
import structlog

from coordinator.lanes import lane, lane_drafters
from coordinator.planning.watchdog import PAUSE_S
from dspark.rounds.control import DrafterAt, DrafterUse
from dspark.rounds.events import DrafterEvent
from dspark.rounds.plan import Plan, PlanKind
from dspark.types import Constraint, ConstraintKind, Draws, SamplingParams
from tests.rounds_cell import RoundsCell, ToyPair


def left_out(cell: RoundsCell) -> float:
    """How many drafters its lane drafts nothing with."""
    return cell.metrics.value("drafters_left_out", lane=cell.lane.facts.name)


async def test_another_drafter_takes_over_without_a_second_prefill(cell: RoundsCell) -> None:
    states = [cell.ask((seed, *range(20)), max_tokens=90) for seed in range(4)]
    await asyncio.sleep(0.08)
    first = cell.drafters[0]
    second = cell.add_drafter()
    cell.lose_drafter(first)
    await asyncio.sleep(0.1)
    before = [state.stats.drafted for state in states]
    assert {state.last_drafter for state in states} == {second.facts.name}
    await cell.finish(*states)
    assert all(state.stats.drafted > was + 8 for state, was in zip(states, before, strict=True))
    assert cell.metrics.value("prefills_total", reason="new") == 4
    assert cell.clean()


async def test_the_least_loaded_drafter_is_chosen_unless_the_request_names_one() -> None:
    cell = RoundsCell(drafters=3)
    states = [cell.ask((seed, 3), max_tokens=60) for seed in range(6)]
    await asyncio.sleep(0.001)
    assert sorted(cell.load.values()) == [2, 2, 2]
    named = [cell.ask((seed, 4), max_tokens=60, drafter="draft/1") for seed in range(4)]
    nobody = cell.ask((9, 4), max_tokens=20, drafter="draft/77")
    await asyncio.sleep(0.001)
    assert {state.last_drafter for state in named} == {"draft/1"}
    await cell.finish(*states, *named, nobody)
    assert nobody.stats.drafted == 0
    assert cell.clean()


async def test_r10_a_drafter_that_only_this_process_lost_drafts_on_for_who_is_there(
    cell: RoundsCell,
) -> None:
    state = cell.ask(max_tokens=90)
    await asyncio.sleep(0.06)
    drafter: Any = cell.drafters[0]
    cell.part_from(drafter)
    late = cell.ask((8, 9), max_tokens=20)
    await asyncio.sleep(0.05)
    before = state.stats.drafted
    await cell.finish(state, late)
    assert state.stats.drafted > before + 8
    assert late.stats.drafted == 0, "nobody new"
    uses = [each.use for each in cell.port.orders(DrafterAt)]
    assert uses == [DrafterUse.YES, DrafterUse.NO_NEW, DrafterUse.GONE]
    assert cell.clean()


async def test_who_has_no_rows_at_a_drafter_that_this_process_lost_gets_another_one() -> None:
    """While rounds are plain its verifier may have no connection to it, and cannot tell."""
    cell = RoundsCell(drafters=2, draft_ms=25, pair=ToyPair(wrong_every=1), sink=1 << 20)
    first = [cell.ask((seed, 3), max_tokens=2000) for seed in range(16)]
    await cell.until(lambda: all(state.stats.rounds for state in first))
    await cell.until(lambda: not cell.port.orders(Plan)[-1].terms.drafts)
    late = [cell.ask((seed, 4), max_tokens=2000) for seed in range(4)]
    await cell.until(lambda: all(state.stats.rounds for state in late))
    lost, other = cell.drafters
    cell.part_from(lost)
    await asyncio.sleep(0.1)
    assert {state.last_drafter for state in late} == {other.facts.name}


async def test_a_drafter_without_room_for_many_at_once_is_asked_again_as_soon_as_for_one(
    cell: RoundsCell,
) -> None:
    cell.drafters[0].room = 0
    states = [cell.ask((seed, 3), max_tokens=2000) for seed in range(8)]
    await asyncio.sleep(0.5)
    assert len([each for each in cell.port.news(DrafterEvent) if each.what == "full"]) > 2
    cell.drafters[0].room = None
    await cell.until(lambda: all(state.stats.drafted for state in states), within_s=4.0)


async def test_a_drafter_that_leaves_hands_its_sequences_to_another_one() -> None:
    cell = RoundsCell(drafters=2)
    states = [cell.ask((seed, 3), max_tokens=90) for seed in range(4)]
    await asyncio.sleep(0.06)
    leaving: Any = cell.drafters[0]
    cell.lane.drafter_leaves(leaving)
    await asyncio.sleep(0.05)
    assert cell.load[leaving] == 0
    assert not leaving.rows
    late = cell.ask((9, 3), max_tokens=20)
    await asyncio.sleep(0.0001)
    assert late.last_drafter == cell.drafters[1].facts.name, "nobody new"
    await cell.finish(*states, late)
    assert all(state.stats.drafted > 40 for state in states)


async def test_a_silent_drafter_costs_a_deadline_and_its_sequences_go_to_another_one(
    cell: RoundsCell,
) -> None:
    cell.drafters[0].silent = True
    state = cell.ask(max_tokens=400, policy="fixed:3")
    await asyncio.sleep(0.01)
    cell.add_drafter()
    await cell.answered(state)
    assert cell.metrics.value("empty_blocks_total", reason="late") == 1
    assert [each.what for each in cell.port.news(DrafterEvent)] == ["late", "silent"]
    assert state.stats.drafted > 0


@pytest.mark.parametrize(
    ("form", "alarms"), [(None, 1), (Constraint(ConstraintKind.REGEX, "[0-9]*"), 0)]
)
async def test_a_drafter_of_no_use_is_left_out_and_one_whose_drafts_a_form_refuses_is_not(
    form: Constraint | None, alarms: int
) -> None:
    cell = RoundsCell(pair=ToyPair(wrong_every=1))
    params = SamplingParams(temperature=0.0, constraint=form)
    await cell.finish(cell.ask(max_tokens=120, policy="fixed:3", params=params))
    version = cell.drafters[0].facts.fingerprint[:16]
    found = cell.metrics.value("drafter_alarms_total", drafter=version, reason="nothing accepted")
    assert found == alarms


async def test_a_drafter_that_is_well_again_is_soon_found_to_be_in_a_large_lane_too() -> None:
    """To draft for one of so many does not pay; a trial is no question of that."""
    cell = RoundsCell(sink=1 << 20, pair=ToyPair(wrong_every=1), draft_ms=12)
    for seed in range(24):
        cell.ask((seed, 3), max_tokens=4000)
    await cell.until(lambda: left_out(cell) == 1)
    cell.pair.wrong_every = 3
    await cell.until(lambda: left_out(cell) == 0, within_s=PAUSE_S + 3.0, each_s=0.05)


async def test_a_trial_drafts_whole_blocks_from_its_admission_on(cell: RoundsCell) -> None:
    cell.lane._drafters.lost(1, "malformed")
    await asyncio.sleep(PAUSE_S)
    state = cell.ask()
    await cell.until(lambda: any(each.admitted for each in cell.lane._members), each_s=1e-5)
    assert state.stats.first is None
    terms = cell.lane._plans.in_force.terms_of(state.sequence.number)
    assert (terms.kind, terms.slots) == (PlanKind.FIXED, cell.drafters[0].facts.block_size)
    cell.admission.cut_all()


@pytest.mark.parametrize("fails", [False, True])
async def test_of_a_drafter_that_left_no_fault_and_no_recovery_is_told(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lane, lane_drafters):  # loggers that no test before this one has configured
        monkeypatch.setattr(module, "log", structlog.get_logger())
    cell = RoundsCell(drafters=2)
    gone = cell.drafters[0]
    number = next(iter(cell.lane._drafters._by_number))
    if fails:
        cell.lane._drafters.lost(number, "malformed")
        assert left_out(cell) == 1
    with structlog.testing.capture_logs() as lines:
        cell.lane.drafter_left(gone)
        await cell.answered(cell.ask())
        cell.lane.heard((DrafterEvent(number, "lost: gone"),))
    assert {line["event"] for line in lines} <= {"request.accepted", "request.ended"}
    assert left_out(cell) == 0


async def test_who_must_draft_is_on_no_trial_for_an_alarm_that_it_does_not_heed() -> None:
    """Nor does it draft whole blocks of what is no use: its lane goes on planning for it."""
    cell = RoundsCell(sink=1 << 20, pair=ToyPair(wrong_every=1), bypass=False)
    states = [cell.ask((seed, 3), max_tokens=4000) for seed in range(8)]
    await cell.until(lambda: left_out(cell) == 1)
    before = sum(state.stats.rounds for state in states)
    await cell.until(lambda: sum(state.stats.rounds for state in states) > before + 80)
    plan = cell.lane._plans.in_force
    assert {plan.terms_of(state.sequence.number).kind for state in states} == {PlanKind.PRICE}


async def test_a_distrusted_drafter_drafts_no_more_under_the_ratio_rules(cell: RoundsCell) -> None:
    exact = cell.ask(max_tokens=150)
    ratio = cell.ask((7, 3), max_tokens=150, params=SamplingParams(temperature=1.0))
    await asyncio.sleep(0.05)
    assert cell.load[cell.drafters[0]] == 2
    places = (1 << 20, *[0] * 63)
    liar = Draws(cell.drafters[0].facts.fingerprint, slots=1 << 20, places=places)
    lies = [(liar,)]
    cell.port.in_reports(
        lambda each: [each._replace(draws=lies.pop()) if each.report.number and lies else each]
    )
    await asyncio.sleep(0.05)
    version = liar.drafter_version[:16]
    assert cell.metrics.value("monitor_alarms_total", drafter=version, statistic="places") == 1
    drafted = {placed.state: placed.drafter for placed in cell.lane._members}
    assert drafted[exact]
    assert not drafted[ratio]
    await cell.finish(exact, ratio)
    assert cell.metrics.value("empty_blocks_total", reason="distrusted") > 0
