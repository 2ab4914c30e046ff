"""A lane beside the rounds of its verifier: admission, lane, planner and `RoundLoop` in simulated
time."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import structlog

from coordinator.lanes import lane, lane_drafters
from coordinator.lanes.request_state import RequestState
from coordinator.lanes.round_learning import Mode
from coordinator.planning.watchdog import PAUSE_S, Alarm
from coordinator.queue.scheduler import FORM_RETRY_S
from coordinator.watching import explaining
from dspark.errors import (
    DsparkError,
    InvalidRequest,
    Overloaded,
    PeerError,
    Unavailable,
    Unsupported,
)
from dspark.rounds.control import Admission, DrafterAt, PassReport, Up, Use
from dspark.rounds.events import (
    Acknowledged,
    DrafterEvent,
    How,
    Release,
    Released,
    RoundReport,
    Why,
)
from dspark.rounds.plan import Plan, PlanKind, Terms
from dspark.runtime.telemetry import MOST_LABELS
from dspark.types import Constraint, ConstraintKind, Draws, Refusal, RefusalReason, SamplingParams
from tests.fakes import answer_of, read
from tests.rounds_cell import RoundsCell, ToyPair, costs, virtual

POLICIES = ("adaptive", "fixed:1", "fixed:3", "threshold:0.5", "off")


@virtual
async def test_several_policies_share_the_rounds_of_a_lane() -> None:
    cell = RoundsCell()
    states = [
        cell.ask((seed, 3), max_tokens=60, policy=policy) for seed, policy in enumerate(POLICIES)
    ]
    await cell.answered(*states)
    one, three, off = states[1].stats, states[2].stats, states[-1].stats
    assert max(i for i, count in enumerate(one.verified_histogram) if count) == 1
    assert max(i for i, count in enumerate(three.verified_histogram) if count) == 3
    assert off.drafted == 0
    assert off.rounds == 59 > 2 * three.rounds
    assert max(report.tokens for report in cell.port.news(PassReport)) > len(POLICIES)


@pytest.mark.parametrize("max_tokens", range(1, 12))
@virtual
async def test_histograms_agree_with_the_counters_for_every_length(max_tokens: int) -> None:
    cell = RoundsCell()
    state = cell.ask(max_tokens=max_tokens)
    await cell.finish(state)
    tokens, stats = await read(state), state.stats
    assert len(tokens) == max_tokens
    assert sum(stats.acceptance_histogram) == sum(stats.verified_histogram) == stats.rounds
    assert stats.accepted <= stats.verified <= stats.drafted
    assert stats.committed_by_rounds == max_tokens - 1
    assert stats.accepted == cell.metrics.value("spec_decode_num_accepted_tokens_total")
    wasted = sum(
        cell.metrics.value("draft_wasted_tokens_total", reason=why)
        for why in ("not_verified", "rejected", "cut")
    )
    assert stats.drafted == stats.accepted + wasted
    assert cell.metrics.value("generation_tokens_total") == max_tokens


@pytest.mark.parametrize("window", [0, 1, 2])
@virtual
async def test_an_end_that_only_the_text_shows_wastes_at_most_the_window(window: int) -> None:
    cell = RoundsCell(window=window)
    state = cell.ask(max_tokens=400, policy="off")
    await cell.until(lambda: state.answer.committed_len >= 30, each_s=0.0005)
    known = state.answer.committed_len
    cell.admission.finish(state)
    await asyncio.sleep(0.1)
    assert cell.clean()
    reports = cell.port.news(PassReport)
    assert {len(each.report.rounds) for each in reports} == {1}
    beyond = len(reports) - (known - 2)
    assert 0 <= beyond <= window + 1, (
        "the round that was running, and as many more as a verifier may run ahead"
    )


@virtual
async def test_prefills_go_a_few_at_a_time_in_order() -> None:
    cell = RoundsCell(max_prefills=2)
    states = [cell.ask((seed, *range(200)), max_tokens=3) for seed in range(6)]
    await asyncio.sleep(0.001)
    assert len(cell.port.orders(Admission)) == 2
    await cell.finish(*states)
    order = [each.admit.sequence for each in cell.port.orders(Admission)]
    assert order == sorted(order)


# What is promised of reports and epochs.


@virtual
async def test_r7_a_commit_is_written_then_acknowledged_then_shown() -> None:
    cell = RoundsCell()
    happened: list[str] = []
    written: list[int] = []

    def write() -> None:
        happened.append("written")
        written.append(cell.lane.states[0].answer.committed_len if cell.lane.states else 0)

    cell.lane._write = write
    tell_port = cell.port.port.tell

    def told(orders: Sequence[Any]) -> None:
        told = ["acknowledged" for each in orders if isinstance(each, Acknowledged)]
        happened.extend(told)
        if told and cell.lane.states:
            assert written[-1] == cell.lane.states[0].answer.committed_len, (
                "all that is acknowledged is written"
            )
        tell_port(orders)

    cell.port.port.tell = told
    state = cell.ask(max_tokens=30)
    pieces = 0
    while (taken := await state.sink.take()) is not None:
        pieces += len(taken)
        happened.append("shown")
        last = [each for each in happened if each != "shown"][-1]
        assert last == "acknowledged" or state.end is not None
    assert pieces > 5
    order = [each for each in happened if each != "shown"]
    assert all(
        before == "written" for before, now in itertools.pairwise(order) if now == "acknowledged"
    )


@pytest.mark.parametrize("bug", ["news", "settle", "look_at"])
@virtual
async def test_r7_a_bug_costs_a_lane_and_no_sequence_and_what_was_committed_before_is_written(
    bug: str,
) -> None:
    cell = RoundsCell()
    state, lane, port = cell.ask(max_tokens=90), cell.lane, cell.port
    written: list[int] = []
    lane._write = lambda: written.append(state.answer.committed_len)
    await cell.until(lambda: state.answer.committed_len > 10, each_s=0.0005)

    def planted(*_: object) -> None:
        raise RuntimeError("planted")

    if bug == "news":
        port.tampers = lambda news: [*news, object()]
    else:
        setattr(lane._assignment, bug, planted)
    if bug == "look_at":
        port.tampers = lambda news: ()
    before = state.answer.committed_len
    await cell.until(lambda: bool(port.closed_because))
    assert port.closed_because == "its lane failed"
    assert bug != "news" or written[-1] == state.answer.committed_len > before
    cell.add_verifier()
    await cell.answered(state)


@virtual
async def test_r9_an_epoch_is_written_before_the_verifier_hears_of_it_and_never_given_twice() -> (
    None
):
    noted: list[int] = []
    written: list[int] = []
    cell = RoundsCell(write=lambda: written.extend(noted))
    tell_port = cell.port.port.tell

    def told(orders: Sequence[Any]) -> None:
        for each in orders:
            if isinstance(each, Admission):
                assert each.admit.epoch in written
        tell_port(orders)

    cell.port.port.tell = told
    state = cell.ask(max_tokens=60, note_epoch=lambda epoch, target: noted.append(epoch))
    await asyncio.sleep(0.00015)
    cell.lose_verifier()  # nothing was committed under the first epoch
    assert state.answer.committed_len == 2
    cell.add_verifier()
    await asyncio.sleep(0.1)
    cell.lane.move_all()
    cell.add_verifier()
    await cell.answered(state)
    assert noted == [0, 1, 2]


@pytest.mark.parametrize("fault", ["gap", "repeat", "length", "number"])
@virtual
async def test_r7_a_report_that_is_not_the_next_one_orphans_its_sequence(fault: str) -> None:
    cell, numbers = RoundsCell(), itertools.count(1)

    def tamper(each: PassReport) -> list[PassReport]:
        if not each.report.number or next(numbers) != 3:
            return [each]
        (row,) = each.report.rounds
        wrong = row._replace(committed_before=row.committed_before + 1)
        if fault == "number":
            wrong = row._replace(round=row.round + 1)
        return {"gap": [], "repeat": [each, each]}.get(fault, [with_rows(each, [wrong])])

    cell.port.in_reports(tamper)
    state = cell.ask(max_tokens=60)
    await cell.answered(state)
    assert (state.handovers, state.sequence.epoch) == (1, 1)
    assert cell.metrics.value("dropped_total", kind="verdict", reason="out_of_order") == 1
    assert cell.clean()


def with_rows(each: PassReport, rows: Iterable[RoundReport]) -> PassReport:
    return each._replace(report=each.report._replace(rounds=[*rows]))


LIES = {
    "a token out of the vocabulary": lambda row: row._replace(tokens=(*row.tokens[:-1], 97)),
    "a negative token": lambda row: row._replace(tokens=(*row.tokens[:-1], -1)),
    "more accepted than verified": lambda row: row._replace(accepted=row.verified + 1),
    "more verified than drafted": lambda row: row._replace(verified=len(row.confidence) + 1),
    "more tokens than accepted": lambda row: row._replace(tokens=(*row.tokens, 3)),
    "fewer tokens than accepted": lambda row: row._replace(tokens=row.tokens[:-1]),
    "nothing": lambda row: row._replace(tokens=(), accepted=0, verified=0),
}


@pytest.mark.parametrize("lie", LIES)
@virtual
async def test_a_verifier_that_says_what_cannot_be_ends_that_request_and_no_other(lie: str) -> None:
    cell = RoundsCell(pair=ToyPair(wrong_every=1000))
    victim, other = cell.ask(max_tokens=60), cell.ask((8, 9), max_tokens=40)

    def told(row: RoundReport) -> RoundReport:
        return LIES[lie](row) if row.sequence == victim.sequence.number and row.verified else row

    cell.port.in_reports(
        lambda each: [
            with_rows(each, map(told, each.report.rounds)) if each.report.number > 2 else each
        ]
    )
    await cell.finish(victim, other)
    assert await read(other) == answer_of((8, 9), 40)
    with pytest.raises(PeerError, match="the verifier sent"):
        await read(victim)
    shown = list(victim.answer.ids()[victim.answer.prompt_len :])
    assert cell.clean()
    assert all(0 <= token < 97 for token in shown)


@virtual
async def test_reasons_of_a_hostile_verifier_name_no_new_time_series() -> None:
    cell = RoundsCell(drafters=0)

    def tamper(each: PassReport) -> list[Up]:
        why, rows = f"x{each.report.number}" * bool(each.report.number), each.report.rounds
        return [with_rows(each, [row._replace(why_empty=why) for row in rows])]

    cell.port.in_reports(tamper)
    state = cell.ask(max_tokens=20, policy="fixed:1")
    await cell.finish(state)
    assert cell.metrics.value("empty_blocks_total", reason="unspecified") > 5


# Workers come and go.


@virtual
async def test_another_drafter_takes_over_without_a_second_prefill() -> None:
    cell = RoundsCell()
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


@virtual
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


@virtual
async def test_r10_a_drafter_that_only_this_process_lost_goes_on_drafting_for_who_is_there() -> (
    None
):
    cell = RoundsCell()
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
    assert uses == [Use.YES, Use.NO_NEW, Use.GONE]
    assert cell.clean()


@virtual
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


@virtual
async def test_a_drafter_that_had_no_room_for_many_at_once_is_asked_again_as_soon_as_for_one() -> (
    None
):
    cell = RoundsCell()
    cell.drafters[0].room = 0
    states = [cell.ask((seed, 3), max_tokens=2000) for seed in range(8)]
    await asyncio.sleep(0.5)
    assert len([each for each in cell.port.news(DrafterEvent) if each.what == "full"]) > 2
    cell.drafters[0].room = None
    await cell.until(lambda: all(state.stats.drafted for state in states), within_s=4.0)


@virtual
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


@virtual
async def test_a_silent_drafter_costs_a_deadline_and_its_sequences_go_to_another_one() -> None:
    cell = RoundsCell()
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
@virtual
async def test_a_drafter_of_no_use_is_left_out_and_one_whose_drafts_a_form_refuses_is_not(
    form: Constraint | None, alarms: int
) -> None:
    cell = RoundsCell(pair=ToyPair(wrong_every=1))
    params = SamplingParams(temperature=0.0, constraint=form)
    await cell.finish(cell.ask(max_tokens=120, policy="fixed:3", params=params))
    version = cell.drafters[0].facts.fingerprint[:16]
    found = cell.metrics.value("drafter_alarms_total", drafter=version, reason="nothing accepted")
    assert (found or 0) == alarms


@virtual
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


@virtual
async def test_a_drafter_that_is_well_again_is_soon_found_to_be_in_a_large_lane_too() -> None:
    """To draft for one of so many does not pay; a trial is no question of that."""
    cell = RoundsCell(sink=1 << 20, pair=ToyPair(wrong_every=1), draft_ms=12)
    for seed in range(24):
        cell.ask((seed, 3), max_tokens=4000)
    lane = cell.lane.facts.name

    def left_out() -> bool:
        return cell.metrics.value("drafters_left_out", lane=lane) == 1

    await cell.until(left_out)
    cell.pair.wrong_every = 3
    await cell.until(lambda: not left_out(), within_s=PAUSE_S + 3.0, each_s=0.05)


@virtual
async def test_a_trial_drafts_whole_blocks_from_its_admission_on() -> None:
    cell = RoundsCell()
    cell.lane._drafters.lost(1, "malformed")
    await asyncio.sleep(PAUSE_S)
    state = cell.ask()
    await cell.until(lambda: any(each.admitted for each in cell.lane._members), each_s=1e-5)
    assert state.stats.first is None
    terms = cell.lane._plans.in_force.terms_of(state.sequence.number)
    assert (terms.kind, terms.slots) == (PlanKind.FIXED, cell.drafters[0].facts.block_size)
    cell.admission.cut_all()


@pytest.mark.parametrize("left_out", [False, True])
@virtual
async def test_of_a_drafter_that_left_no_fault_and_no_recovery_is_told(
    left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lane, lane_drafters):  # loggers that no test before this one has configured
        monkeypatch.setattr(module, "log", structlog.get_logger())
    cell = RoundsCell(drafters=2)
    name, gone = cell.lane.facts.name, cell.drafters[0]
    number = next(iter(cell.lane._drafters._by_number))
    if left_out:
        cell.lane._drafters.lost(number, "malformed")
        assert cell.metrics.value("drafters_left_out", lane=name) == 1
    with structlog.testing.capture_logs() as lines:
        cell.lane.drafter_left(gone)
        await cell.answered(cell.ask())
        cell.lane.heard((DrafterEvent(number, "lost: gone"),))
    assert {line["event"] for line in lines} <= {"request.accepted", "request.ended"}
    assert (cell.metrics.value("drafters_left_out", lane=name) or 0) == 0


@virtual
async def test_who_must_draft_is_on_no_trial_for_an_alarm_that_it_does_not_heed() -> None:
    """Nor does it draft whole blocks of what is no use: its lane goes on planning for it."""
    cell = RoundsCell(sink=1 << 20, pair=ToyPair(wrong_every=1), bypass=False)
    states = [cell.ask((seed, 3), max_tokens=4000) for seed in range(8)]
    await cell.until(
        lambda: cell.metrics.value("drafters_left_out", lane=cell.lane.facts.name) == 1
    )
    before = sum(state.stats.rounds for state in states)
    await cell.until(lambda: sum(state.stats.rounds for state in states) > before + 80)
    plan = cell.lane._plans.in_force
    assert {plan.terms_of(state.sequence.number).kind for state in states} == {PlanKind.PRICE}


@virtual
async def test_a_distrusted_drafter_drafts_no_more_under_the_ratio_rules() -> None:
    cell = RoundsCell()
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


@virtual
async def test_a_verifier_that_says_nothing_is_let_go_after_its_deadline() -> None:
    cell = RoundsCell(verify_deadline_s=2.0)
    state = cell.ask(max_tokens=90)
    await asyncio.sleep(0.05)
    port = cell.port
    port.tampers = lambda news: ()
    await asyncio.sleep(1.9)
    assert not port.closed_because
    await asyncio.sleep(1.0)
    assert port.closed_because == "no verdict for 2 s"
    cell.add_verifier()
    await cell.answered(state)


@virtual
async def test_a_verifier_that_never_prefills_is_let_go_although_more_are_asked_of_it() -> None:
    cell = RoundsCell(prefill_deadline_s=3.0)
    port = cell.port
    port.tampers = lambda news: ()
    for seed in range(30):
        cell.ask((seed, 3), max_tokens=9)
        await asyncio.sleep(0.2)
        if port.closed_because:
            break
    assert port.closed_because == "no prefill within 3 s"
    assert 14 <= seed <= 20


@virtual
async def test_a_verifier_that_will_leave_settles_its_sequences_and_they_move() -> None:
    cell = RoundsCell()
    states = [cell.ask((seed, 3), max_tokens=60) for seed in range(4)]
    await asyncio.sleep(0.06)
    first, port = cell.lane, cell.port
    cell.add_verifier()
    first.drain(1.0)
    late = cell.ask((9, 3), max_tokens=20)
    await asyncio.sleep(0.0001)
    assert late.sequence.number not in {state.sequence.number for state in first.states}
    first.move_all()
    assert len(first) == 4, "each leaves when it is settled"
    await cell.answered(*states, late)
    assert len(first) == 0
    assert sum(each.how is How.SETTLE for each in port.orders(Release)) == 4
    for state in states:
        assert (state.handovers, state.sequence.epoch) == (0, 1)
    drawn = {each.sequence: each.rounds for each in port.news(Released)}
    reported = [row for each in port.news(PassReport) for row in each.report.rounds]
    assert drawn == {number: sum(row.sequence == number for row in reported) for number in drawn}
    assert cell.metrics.value("handovers_total", reason="drained") == 4
    assert cell.clean()


@virtual
async def test_a_verifier_that_never_settles_a_sequence_loses_it() -> None:
    cell = RoundsCell(verify_deadline_s=2.0)
    stuck, other = cell.ask(max_tokens=60), cell.ask((8, 3), max_tokens=2000, policy="off")
    await asyncio.sleep(0.06)
    number = stuck.sequence.number
    cell.port.tampers = lambda news: [
        each for each in news if not (isinstance(each, Released) and each.sequence == number)
    ]
    placed = cell.lane._members.get(number)
    cell.lane._settle(placed)
    await asyncio.sleep(1.5)
    assert not stuck.handovers
    await asyncio.sleep(2.0)
    assert stuck.handovers == 1
    assert not other.handovers
    await cell.answered(stuck)


# One sequence of many.


def silent_about(number: int) -> Callable[[PassReport], list[PassReport]]:
    """As a verifier that forgot a sequence, and says nothing of it any more."""

    def tamper(each: PassReport) -> list[PassReport]:
        rows = [row for row in each.report.rounds if row.sequence != number]
        return [with_rows(each, rows)._replace(labels=None)] if rows else []

    return tamper


@virtual
async def test_a_sequence_that_its_verifier_is_silent_about_moves_and_no_other_does() -> None:
    cell = RoundsCell(verify_deadline_s=2.0)
    stuck = cell.ask(max_tokens=60, policy="fixed:2")
    other = cell.ask((8, 3), max_tokens=2000, policy="off")
    await cell.until(lambda: stuck.answer.committed_len > 20)
    stands = stuck.answer.length
    cell.port.in_reports(silent_about(stuck.sequence.number))
    await asyncio.sleep(1.9)
    assert (stuck.sequence.epoch, stuck.answer.length) == (0, stands)
    assert not cell.port.orders(Release)
    await cell.until(lambda: bool(cell.port.orders(Release)), within_s=1.0)
    (release,) = cell.port.orders(Release)
    assert (release.sequence, release.how) == (stuck.sequence.number, How.SETTLE)
    cell.port.tampers = lambda news: news
    await cell.answered(stuck)
    assert stuck.sequence.epoch == 1
    assert (other.sequence.epoch, other.handovers) == (0, 0)
    assert cell.metrics.value("dropped_total", kind="sequence", reason="silent") == 1


@pytest.mark.parametrize("left", [0, 1])
@virtual
async def test_nobody_moves_for_silence_while_the_verifier_has_no_page_left(left: int) -> None:
    cell = RoundsCell(verify_deadline_s=2.0)
    starved = cell.ask(max_tokens=60, policy="off")
    other = cell.ask((8, 3), max_tokens=2000, policy="off")
    await cell.until(lambda: starved.answer.committed_len > 20)
    silent = silent_about(starved.sequence.number)
    cell.port.in_reports(lambda each: [told._replace(pages_free=left) for told in silent(each)])
    await asyncio.sleep(6.0)
    assert bool(cell.port.orders(Release)) is bool(left)
    assert not other.sequence.epoch


@virtual
async def test_a_prompt_that_others_overtook_is_run_again() -> None:
    cell = RoundsCell(prefill_deadline_s=10.0)
    lost = cell.ask(max_tokens=4)
    cell.port.in_reports(silent_about(lost.sequence.number))
    await asyncio.sleep(5.0)
    later = cell.ask((8, 9), max_tokens=2000, policy="off")
    await asyncio.sleep(4.0)
    assert not lost.sequence.epoch
    cell.port.tampers = lambda news: news
    await asyncio.sleep(4.0)  # the later one was run after 5 s: for another 10 s nobody would look
    assert (lost.sequence.epoch, later.sequence.epoch) == (1, 0)
    await cell.answered(lost)


@pytest.mark.parametrize("others_get_on", [True, False])
@virtual
async def test_a_prompt_is_waited_for_while_prompts_get_on_and_else_run_again(
    others_get_on: bool,
) -> None:
    cell = RoundsCell(prefill_deadline_s=10.0)
    busy = cell.ask((8, 9), max_tokens=9000, policy="off")
    await cell.until(lambda: busy.answer.committed_len > 20)
    slow = cell.ask(max_tokens=4)
    silent, riding = silent_about(slow.sequence.number), itertools.count()

    def tamper(each: PassReport) -> list[PassReport]:
        """Another coordinator's prompts get on now and then."""
        gets_on = others_get_on and next(riding) % 50 == 0
        return [told._replace(prefill_tokens=8) if gets_on else told for told in silent(each)]

    cell.port.in_reports(tamper)
    await asyncio.sleep(9.0)
    assert not slow.sequence.epoch
    if not others_get_on:
        cell.port.tampers = lambda news: news
    await asyncio.sleep(16.0)
    assert (slow.sequence.epoch, busy.sequence.epoch) == (not others_get_on, 0)
    assert slow.sequence.finished is not others_get_on


@virtual
async def test_a_bug_in_one_commit_fails_that_request_alone() -> None:
    cell = RoundsCell()
    broken, fine = cell.ask(max_tokens=20), cell.ask((8, 9), max_tokens=20)
    await cell.until(lambda: broken.answer.length > 2)

    def take(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    broken.answer.take = take
    await cell.finish(broken, fine)
    assert await read(fine) == answer_of((8, 9), 20)
    assert fine.handovers == 0
    with pytest.raises(PeerError):
        await read(broken)
    assert cell.clean()


@virtual
async def test_a_prompt_is_run_under_its_own_salt_wherever_it_goes() -> None:
    cell = RoundsCell()
    states = [cell.ask(max_tokens=15, cache_salt=salt) for salt in ("one", "", "two")]
    await asyncio.sleep(0.02)
    first = cell.port
    cell.replace_verifier()
    await cell.finish(*states)
    for port in (first, cell.port):
        salts = {each.admit.sequence: each.cache_salt for each in port.orders(Admission)}
        assert salts == {1: "one", 2: "", 3: "two"}


# Who waits, and for whom.


@pytest.mark.parametrize("serves", [True, False])
@virtual
async def test_a_verifier_that_runs_its_first_requests_is_waited_for_but_not_without_end(
    serves: bool,
) -> None:
    cell = RoundsCell(verifier_wait_s=20.0, warm_up_s=30.0)
    state = cell.ask(max_tokens=9)
    cell.admission.verifier_warms = lambda: True
    cell.lose_verifier()
    await asyncio.sleep(79.0)
    assert not state.sequence.finished
    if serves:
        cell.add_verifier()
        await cell.answered(state)
    else:
        await asyncio.sleep(2.0)
        with pytest.raises(Unavailable, match="within 80 s"):
            await read(state)


@pytest.mark.parametrize("back", [True, False])
@virtual
async def test_an_answer_that_has_begun_goes_on_under_its_own_target_alone(back: bool) -> None:
    cell = RoundsCell()
    state = cell.ask(max_tokens=90)
    await cell.until(lambda: state.answer.length > 9)
    cell.lose_verifier()
    stands = state.answer.length
    cell.add_verifier(fingerprint="another target")
    await cell.answered(cell.ask(max_tokens=9))
    assert state.answer.length == stands
    if back:
        cell.replace_verifier()
        await cell.answered(state)
    else:
        await asyncio.sleep(21.0)
        with pytest.raises(Unavailable, match=f"within 20 s; the answer stands at offset {stands}"):
            await read(state)


@virtual
async def test_while_every_verifier_drains_it_is_as_without_one() -> None:
    cell = RoundsCell(verifiers=2, max_running=1, verifier_wait_s=20.0)
    runs, waits = cell.ask(max_tokens=3000), cell.ask(max_tokens=9)
    first, second = cell.lanes
    first.draining = True
    cell.admission.lanes_changed()
    cell.admission.check_open()
    second.draining = True
    cell.admission.lanes_changed()
    with pytest.raises(Unavailable, match="every verifier is draining"):
        cell.ask(max_tokens=9)
    await asyncio.sleep(19.0)
    assert not waits.sequence.finished
    await asyncio.sleep(2.0)
    with pytest.raises(Unavailable, match="no verifier came within 20 s"):
        await read(waits)
    first.draining = second.draining = False
    cell.admission.lanes_changed()
    await cell.answered(runs, cell.ask(max_tokens=9))


@virtual
async def test_the_wait_for_a_verifier_begins_when_the_last_one_drains_not_at_an_earlier_loss() -> (
    None
):
    cell = RoundsCell(verifiers=2, max_running=1, verifier_wait_s=20.0)
    runs, waits = cell.ask(max_tokens=30_000), cell.ask(max_tokens=9)
    cell.lose_verifier()
    await asyncio.sleep(19.0)
    cell.lanes[0].draining = True
    cell.admission.lanes_changed()
    await asyncio.sleep(19.0)
    assert not waits.sequence.finished
    await asyncio.sleep(2.0)
    with pytest.raises(Unavailable, match="no verifier came within 20 s"):
        await read(waits)
    cell.admission.finish(runs)
    assert cell.admission._outage is None, "nobody waits"


@virtual
async def test_answers_that_end_together_with_their_verifier_leave_the_others_theirs() -> None:
    """The end of one, lost too often, is that of the other one, in the middle of handing back."""
    cell = RoundsCell(max_handovers=1)
    states = cell.answers(max_tokens=60, choices=2)
    await asyncio.sleep(0.02)
    cell.replace_verifier()
    await cell.until(lambda: len(cell.lane) == 2)
    other = cell.ask((7, 8), max_tokens=30)
    await asyncio.sleep(0.02)
    lane = cell.lane
    cell.lose_verifier()
    assert len(lane) == 0
    cell.add_verifier()
    with pytest.raises(Unavailable, match="2 verifiers were lost"):
        await read(states[0])
    ended = cell.admission.endings.of(states[0].request.id)
    assert [(each.verifier, each.drafter) for each in ended] == [("verify/2", "draft/0")] * 2, (
        "those that had them, not nobody"
    )
    await cell.answered(other)
    assert cell.clean()


@virtual
async def test_a_lane_that_closes_leaves_the_metrics_of_the_next_one_of_its_name() -> None:
    cell = RoundsCell()
    name, value = cell.lane.facts.name, cell.metrics.registry.get_sample_value

    def shown() -> list[float | None]:
        modes = [value("dspark_lane_mode", {"lane": name, "mode": mode.value}) for mode in Mode]
        whole = {"lane": name}
        rest = ("dspark_cost_curve_in_force", "dspark_drafters_left_out")
        return [*modes, *(value(each, whole) for each in rest)]

    next(iter(cell.lane._drafters._by_number.values())).watch.alarm = Alarm.COLLAPSE
    cell.lane._drafters.show()
    lane = cell.add_verifier(name)
    lane._learning._mode = Mode.ONE
    lane._learning.show()
    cell.lose_verifier()
    assert shown() == [float(mode is Mode.ONE) for mode in Mode] + [1.0, 0.0]
    last = cell.add_verifier(name)
    assert shown() == [0.0] * len(Mode) + [1.0, 0.0]
    cell.lose_verifier(cell.lanes.index(last))
    assert shown() == [float(mode is Mode.ONE) for mode in Mode] + [1.0, 0.0]
    cell.lose_verifier()
    assert shown() == [0.0] * len(Mode) + [None, 0.0]
    assert cell.lanes == []


@pytest.mark.parametrize("policy", ["adaptive", "fixed:3", "off"])
@virtual
async def test_an_idle_lane_shows_how_it_ran(policy: str) -> None:
    cell = RoundsCell()
    await cell.answered(cell.ask(max_tokens=60, policy=policy))
    value = cell.metrics.registry.get_sample_value
    shown = {
        mode
        for mode in Mode
        if value("dspark_lane_mode", {"lane": cell.lane.facts.name, "mode": mode.value})
    }
    assert shown == {Mode.PLAIN if policy == "off" else Mode.ONE}


@virtual
async def test_a_prompt_that_gets_on_for_long_is_no_silence() -> None:
    cell = RoundsCell()
    cell.port.hold()
    state, lane = cell.ask(), cell.lane
    for _ in range(10):
        await asyncio.sleep(50.0)
        lane.heard(())
    assert cell.lanes == [lane]
    assert state.handovers == 0
    await asyncio.sleep(150.0)
    assert cell.lanes == [], "without a sign it is lost"


@virtual
async def test_labels_beyond_those_kept_apart_are_planned_for_together() -> None:
    cell = RoundsCell(max_running=80)
    states = [cell.ask(label=f"label{number}") for number in range(MOST_LABELS + 20)]
    kinds = set[str]()

    def over() -> bool:
        kinds.update(placed.planned.key for placed in cell.lane._members if placed.admitted)
        return all(state.sequence.finished for state in states)

    await cell.until(over)
    assert 20 < len(kinds) <= MOST_LABELS + 1


@virtual
async def test_a_verifier_that_leaves_keeps_who_ends_in_time() -> None:
    cell = RoundsCell()
    old = cell.ask(max_tokens=20)
    await asyncio.sleep(0.01)
    cell.lane.drain(10.0)
    cell.add_verifier()
    new = cell.ask((7, 8), max_tokens=20)
    await cell.answered(old, new)
    assert (old.sequence.epoch, old.last_verifier, new.last_verifier) == (0, "verify/1", "verify/2")


# Memory.


@virtual
async def test_the_youngest_makes_room_and_comes_back() -> None:
    cell = RoundsCell(pages=70)
    states = [cell.ask((seed, 3), max_tokens=100) for seed in range(4)]
    await cell.answered(*states)
    preempted = cell.metrics.value("num_preemptions_total")
    assert cell.metrics.value("prefills_total", reason="preempted") == preempted > 1
    assert states[0].sequence.epoch == 0, "the oldest always goes on"
    assert cell.metrics.value("handovers_total", reason="lost") == 0
    whys = {each.why for each in cell.port.news(Released)}
    assert Why.OUT_OF_PAGES in whys
    assert cell.clean()


@virtual
async def test_a_prompt_that_finds_no_page_waits_in_front_and_comes_again_under_another_epoch() -> (
    None
):
    cell = RoundsCell(pages=70)
    first = cell.ask((4, 3), max_tokens=150)
    await asyncio.sleep(0.4)
    # The coordinator thinks that there is room; the verifier, whose pool others fill too, knows
    # better.
    pages = cell.port.port.pages
    assert pages.grow(99, 0, 4 * pages.left - 20, 0) is not None
    second = cell.ask(tuple(range(30)), max_tokens=20)
    await asyncio.sleep(0.1)
    assert cell.admission.queued == 1
    pages.free(99, 0)
    await cell.answered(first, second)
    assert second.sequence.epoch > 0
    assert second.handovers == 0
    assert cell.metrics.value("prefills_total", reason="new") == 2 + second.sequence.epoch
    assert cell.clean()


def refused(port: Any, told: PassReport, why: RefusalReason, message: str) -> list[Up]:
    """What comes in place of a report: its one sequence is refused."""
    (row,) = told.report.rounds
    port.port.tell([Release(row.sequence, row.epoch, How.DROP)])
    return [Released(row.sequence, row.epoch, 0, Why.NO_PAGES, Refusal(why, message))]


@virtual
async def test_who_is_turned_away_before_anybody_looked_at_the_prompt_waits_in_front() -> None:
    cell = RoundsCell()

    def tamper(each: PassReport) -> list[Up]:
        cell.port.tampers = lambda news: news
        return refused(cell.port, each, RefusalReason.NO_PAGES, "the verifier is draining")

    cell.port.in_reports(tamper)
    state = cell.ask()
    await cell.answered(state)
    assert (state.sequence.epoch, state.handovers) == (1, 0)


@virtual
async def test_an_answer_that_has_begun_waits_for_a_verifier_that_has_no_time_for_it_now() -> None:
    cell = RoundsCell(max_handovers=0)
    state = cell.ask(max_tokens=60)
    await cell.until(lambda: state.answer.length > 9)
    cell.lane.move_all()
    await asyncio.sleep(1.0)
    cell.add_verifier()
    port = cell.ports[-1]

    def once(each: PassReport) -> list[Up]:
        port.tampers = lambda news: news
        return refused(port, each, RefusalReason.BUSY, "constraint: no time")

    port.in_reports(once)
    await cell.until(lambda: state.sequence.epoch == 2)
    began, other = asyncio.get_running_loop().time(), cell.ask(max_tokens=4)
    await cell.finish(other)
    assert asyncio.get_running_loop().time() - began < 0.9 * FORM_RETRY_S, (
        "nobody else waits for that"
    )
    await cell.answered(state)
    assert (state.sequence.epoch, state.handovers) == (2, 0)


@pytest.mark.parametrize("busy", [0, 1])
@virtual
async def test_of_several_answers_one_waits_for_a_busy_verifier_once_another_is_shown(
    busy: int,
) -> None:
    cell = RoundsCell(max_handovers=0)
    states = cell.answers(max_tokens=60, choices=2)
    shown: set[int] = set()
    for state in states:
        state.shown = shown
    number = states[busy].sequence.number

    def once(each: PassReport) -> list[Up]:
        if each.report.number or each.report.rounds[0].sequence != number or not shown:
            return [each]
        cell.port.tampers = lambda news: news
        return refused(cell.port, each, RefusalReason.BUSY, "constraint: no time")

    shown.add(1 - busy)
    cell.port.in_reports(once)
    await cell.finish(*states)
    assert [state.answer.length for state in states] == [60, 60]
    assert states[busy].sequence.epoch == 1


NOT_THESE, NO_RULE = "not these", "unsupported: no such rule"
AGAIN = "begun 3 times, and refused again: not these; the answer stands at offset 0"


@pytest.mark.parametrize(
    ("why", "said", "error", "told"),
    [
        ("BUSY", NOT_THESE, Overloaded, "not these"),
        ("INVALID", NOT_THESE, PeerError, "the verifier refused a prompt: not these"),
        ("INTERNAL", NOT_THESE, PeerError, AGAIN),
        (
            "UNKNOWN_SEQUENCE",
            NOT_THESE,
            Unavailable,
            "begun 3 .*, and refused again: not these; .*",
        ),
        ("INVALID", "constraint: no such rule", InvalidRequest, "^constraint: no such rule"),
        ("INVALID", f"constraint: {NO_RULE}", Unsupported, "^constraint: no such rule"),
        ("INVALID", "sampling.top_k: none", InvalidRequest, r"^sampling_params\.top_k: none"),
        ("INVALID", f"sampling.n: {NO_RULE}", Unsupported, r"^sampling_params\.n: no such rule"),
    ],
)
@virtual
async def test_who_is_refused_hears_why_under_the_name_of_the_field(
    why: str, said: str, error: type[DsparkError], told: str
) -> None:
    cell = RoundsCell(max_handovers=2)
    cell.port.in_reports(lambda each: refused(cell.port, each, RefusalReason[why], said))
    state = cell.ask()
    await cell.finish(state)
    with pytest.raises(error, match=f"{told}$") as caught:
        await read(state)
    assert type(caught.value) is error
    assert cell.metrics.value("requests_total", outcome="overloaded") == (why == "BUSY")
    assert cell.metrics.value("requests_total", outcome="slow_reader") == 0


# Plans.


def terms_before(cell: RoundsCell, number: int) -> Terms:
    """Of a sequence, by the last plan that was told before its admission."""
    told = itertools.takewhile(
        lambda e: not (isinstance(e, Admission) and e.admit.sequence == number), cell.port.told
    )
    return [each for each in told if isinstance(each, Plan)][-1].terms_of(number)


@virtual
async def test_a_plan_is_told_once_and_names_a_newcomer_with_terms_of_its_own() -> None:
    cell = RoundsCell()
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


@virtual
async def test_where_drafts_do_not_pay_rows_of_a_few_are_sent_until_drafts_pay() -> None:
    cell = RoundsCell(sink=1 << 20, draft_ms=22)

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


@virtual
async def test_weights_of_requests_reach_the_terms_of_their_blocks() -> None:
    cell = RoundsCell()
    states = [cell.ask((seed, 3), max_tokens=60, weight=1.0 + 2.0 * seed) for seed in (0, 1)]
    await cell.finish(*states)
    weights = {
        tuple(round(each.terms_of(state.sequence.number).weight, 3) for state in states)
        for each in cell.port.orders(Plan)
        if each.terms.kind is PlanKind.PRICE
    }
    assert any(second == pytest.approx(3.0 * first) for first, second in weights)
