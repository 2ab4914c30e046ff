"""Verifiers leave and come: who moves to which, and who waits for one, in simulated time."""

import asyncio

import pytest

from dspark.errors import Unavailable
from dspark.rounds.control import Admission, PassReport
from dspark.rounds.events import Release, Released, ReleaseMode
from tests.fakes import read
from tests.rounds_cell import RoundsCell


async def test_a_verifier_that_will_leave_settles_its_sequences_and_they_move(
    cell: RoundsCell,
) -> None:
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
    assert sum(each.how is ReleaseMode.SETTLE for each in port.orders(Release)) == 4
    for state in states:
        assert (state.handovers, state.sequence.epoch) == (0, 1)
    drawn = {each.sequence: each.rounds for each in port.news(Released)}
    reported = [row for each in port.news(PassReport) for row in each.report.rounds]
    assert drawn == {number: sum(row.sequence == number for row in reported) for number in drawn}
    assert cell.metrics.value("handovers_total", reason="drained") == 4
    assert cell.clean()


async def test_a_prompt_is_run_under_its_own_salt_wherever_it_goes(cell: RoundsCell) -> None:
    states = [cell.ask(max_tokens=15, cache_salt=salt) for salt in ("one", "", "two")]
    await asyncio.sleep(0.02)
    first = cell.port
    cell.replace_verifier()
    await cell.finish(*states)
    for port in (first, cell.port):
        salts = {each.admit.sequence: each.cache_salt for each in port.orders(Admission)}
        assert salts == {1: "one", 2: "", 3: "two"}


@pytest.mark.parametrize("serves", [True, False])
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
async def test_an_answer_that_has_begun_goes_on_under_its_own_target_alone(
    cell: RoundsCell, back: bool
) -> None:
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


async def test_the_wait_for_a_verifier_begins_when_the_last_drains_not_at_a_loss_before() -> None:
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


async def test_a_verifier_that_leaves_keeps_who_ends_in_time(cell: RoundsCell) -> None:
    old = cell.ask(max_tokens=20)
    await asyncio.sleep(0.01)
    cell.lane.drain(10.0)
    cell.add_verifier()
    new = cell.ask((7, 8), max_tokens=20)
    await cell.answered(old, new)
    assert (old.sequence.epoch, old.last_verifier, new.last_verifier) == (0, "verify/1", "verify/2")
