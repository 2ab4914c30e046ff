"""Out of pages: the youngest makes room, loses nothing, and comes back in the order of arrival."""

import asyncio
from dataclasses import replace

from coordinator.lanes.members import Members
from coordinator.queue.waiting_queue import WaitingQueue
from coordinator.simulation.world import KVShape
from tests.rounds_cell import RoundsCell


async def test_who_was_preempted_goes_before_everybody_younger(cell: RoundsCell) -> None:
    states = [cell.ask((seed, 7), max_tokens=4) for seed in range(4)]
    line = WaitingQueue()
    for index in (1, 3, 0, 2):  # as they lose their places
        line.add(states[index])
    assert [*line] == states
    tenant = states[0].request.tenant
    assert line.first(tenant, lambda state: True) is states[0]
    assert line.first(tenant, lambda state: state is not states[0]) is states[1]
    await cell.finish(*states)


async def test_sequences_are_taken_in_by_what_they_hold() -> None:
    cell = RoundsCell(pages=68)  # of 4 tokens
    cell.port.hold()
    states = [cell.ask((seed, 7), max_tokens=250) for seed in range(6)]
    await asyncio.sleep(0.1)
    assert cell.admission.running == 4, "17 pages each, growth included"
    lone = states[0]
    assert Members(replace(cell.lane.facts, pages_total=63), 1).fits(lone)
    small = Members(replace(cell.lane.facts, pages_total=62), 1)
    assert not small.fits(lone)
    small.add(states[1])
    assert not small.fits(lone), "it would never end there, whatever the others hold now"


async def test_whom_only_a_leaving_verifier_could_hold_delays_nobody() -> None:
    cell = RoundsCell(pages=100)
    cell.lane.drain(60.0)
    cell.world.kv = KVShape(20, 4)
    cell.add_verifier()
    large = cell.ask((1, 7), max_tokens=200)
    await cell.answered(
        cell.ask((2, 7), max_tokens=20), cell.ask((3, 7), max_tokens=20, tenant="another")
    )
    assert cell.admission.queued == 1
    cell.world.kv = KVShape(100, 4)
    cell.add_verifier()
    await cell.answered(large)


async def test_who_waits_for_the_large_verifier_leaves_the_small_one_to_others() -> None:
    cell = RoundsCell(pages=68)
    cell.port.hold()
    cell.world.kv = KVShape(20, 4)
    cell.add_verifier()
    for seed in range(5):
        cell.ask((seed, 7), max_tokens=250)
    await cell.until(lambda: cell.admission.running == 4)
    await cell.answered(cell.ask((5, 7), max_tokens=20))
    assert (cell.admission.running, cell.admission.queued) == (4, 1)


async def test_a_drafter_with_room_for_some_drafts_for_as_many() -> None:
    cell = RoundsCell(bypass=False)
    cell.drafters[0].room = 3
    states = [cell.ask((seed, 7), max_tokens=10_000) for seed in range(8)]

    def drafting() -> int:
        return len(cell.drafters[0].rows)

    await cell.until(lambda: drafting() == 3, within_s=20.0)
    before = [state.stats.drafted for state in states]
    await asyncio.sleep(1.0)
    grown = [state.stats.drafted > old for state, old in zip(states, before, strict=True)]
    assert grown.count(True) >= 3
    first = next(state for state in states if state.stats.drafted)
    cell.admission.abort(first.request.id)
    await cell.until(lambda: drafting() < 3)
    await cell.until(lambda: drafting() == 3, within_s=20.0)


async def test_answers_of_a_request_enter_together_behind_its_first_prompt(
    cell: RoundsCell,
) -> None:
    cell.port.hold()
    states = cell.answers(policy="off", choices=4)
    members = Members(cell.lane.facts, 8)
    for state in states:
        members.add(state)
    (first,) = members.next()
    assert members.next() == []
    members.joined(first)
    assert len(members.next()) == 3
