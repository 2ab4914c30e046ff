"""Who says nothing, and how long a lane waits for it, in simulated time."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from dspark.rounds.control import PassReport
from dspark.rounds.events import Release, Released, ReleaseMode
from tests.rounds_cell import RoundsCell, with_rows


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


def silent_about(number: int) -> Callable[[PassReport], list[PassReport]]:
    """As a verifier that forgot a sequence, and says nothing of it any more."""

    def tamper(each: PassReport) -> list[PassReport]:
        rows = [row for row in each.report.rounds if row.sequence != number]
        return [with_rows(each, rows)._replace(labels=None)] if rows else []

    return tamper


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
    assert (release.sequence, release.how) == (stuck.sequence.number, ReleaseMode.SETTLE)
    cell.port.honest()
    await cell.answered(stuck)
    assert stuck.sequence.epoch == 1
    assert (other.sequence.epoch, other.handovers) == (0, 0)
    assert cell.metrics.value("dropped_total", kind="sequence", reason="silent") == 1


@pytest.mark.parametrize("left", [0, 1])
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


async def test_a_prompt_that_others_overtook_is_run_again() -> None:
    cell = RoundsCell(prefill_deadline_s=10.0)
    lost = cell.ask(max_tokens=4)
    cell.port.in_reports(silent_about(lost.sequence.number))
    await asyncio.sleep(5.0)
    later = cell.ask((8, 9), max_tokens=2000, policy="off")
    await asyncio.sleep(4.0)
    assert not lost.sequence.epoch
    cell.port.honest()
    await asyncio.sleep(4.0)  # the later one was run after 5 s: for another 10 s nobody would look
    assert (lost.sequence.epoch, later.sequence.epoch) == (1, 0)
    await cell.answered(lost)


@pytest.mark.parametrize("others_get_on", [True, False])
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
        cell.port.honest()
    await asyncio.sleep(16.0)
    assert (slow.sequence.epoch, busy.sequence.epoch) == (not others_get_on, 0)
    assert slow.sequence.finished is not others_get_on


async def test_a_prompt_that_gets_on_for_long_is_no_silence(cell: RoundsCell) -> None:
    cell.port.hold()
    state, lane = cell.ask(), cell.lane
    for _ in range(10):
        await asyncio.sleep(50.0)
        lane.heard(())
    assert cell.lanes == [lane]
    assert state.handovers == 0
    await asyncio.sleep(150.0)
    assert cell.lanes == [], "without a sign it is lost"
