"""Out of pages: the youngest makes room, loses nothing, and comes back in the order of arrival."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from fakes import answer_of, read
from rounds_cell import RoundsCell, virtual

from coordinator.lanes.members import Members
from coordinator.queue.waiting_queue import WaitingQueue


@virtual
async def test_who_was_preempted_goes_before_everybody_younger() -> None:
    cell = RoundsCell()
    states = [cell.ask((seed, 7), max_tokens=4) for seed in range(4)]
    line = WaitingQueue()
    for index in (1, 3, 0, 2):  # as they lose their places
        line.add(states[index])
    assert [*line] == states
    assert line.first(states[0].request.tenant) is states[0]
    await cell.finish(*states)


@virtual
async def test_sequences_are_taken_in_by_what_they_hold() -> None:
    cell = RoundsCell(pages=68)  # of 4 tokens
    cell.port.hold()
    states = [cell.ask((seed, 7), max_tokens=250) for seed in range(6)]
    await asyncio.sleep(0.1)
    assert cell.admission.running == 4, "17 pages each, growth included"
    lone = states[0]
    assert Members(replace(cell.lane.facts, pages_total=63), 1).fits(lone)
    assert not Members(replace(cell.lane.facts, pages_total=62), 1).fits(lone)


@virtual
async def test_a_drafter_without_room_costs_drafts_and_nothing_else() -> None:
    cell = RoundsCell()
    cell.drafters[0].full = True
    states = [cell.ask((seed, 7), max_tokens=12) for seed in range(3)]
    await cell.finish(*states)
    assert [await read(state) for state in states] == [
        answer_of((seed, 7), 12) for seed in range(3)
    ]
    assert cell.metrics.value("empty_blocks_total", reason="no_drafter") > 0
    assert sum(state.stats.drafted for state in states) == 0
    assert cell.metrics.value("num_preemptions_total") == 0
