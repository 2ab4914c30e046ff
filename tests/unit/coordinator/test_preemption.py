"""Out of pages: the youngest makes room, loses nothing, and comes back in the order of arrival."""

from collections.abc import AsyncIterator, Callable

import pytest_asyncio
from fakes import ToyCell, answer_of, calm, read

from coordinator.lanes import paging
from coordinator.lanes.ports import Declined
from dspark.types import Cursor, RefusalReason

MakeCell = Callable[..., ToyCell]
NO_PAGE = Declined(Cursor(0, 0, 0, 0), RefusalReason.OUT_OF_PAGES)


@pytest_asyncio.fixture
async def make_cell() -> AsyncIterator[MakeCell]:
    cells: list[ToyCell] = []

    def make(**settings: object) -> ToyCell:
        cells.append(ToyCell(**settings))
        return cells[-1]

    yield make
    for cell in cells:
        await cell.close()


async def test_the_youngest_begins_again_and_no_answer_changes(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks = [cell.ask((seed, 7), max_tokens=30) for seed in range(3)]
    await calm(6)
    cell.verifier.decline = NO_PAGE  # to the oldest
    await cell.finish(*tracks)
    assert [await read(track) for track in tracks] == [answer_of((seed, 7), 30) for seed in range(3)]
    assert [track.sequence.epoch for track in tracks] == [0, 0, 1]
    assert [track.handovers for track in tracks] == [0, 0, 0]
    assert cell.metrics.value("num_preemptions_total") == 1
    assert cell.metrics.value("prefills_total", reason="preempted") == 1
    await calm()
    assert cell.clean()


async def test_refused_every_few_rounds_everybody_still_ends(make_cell: MakeCell) -> None:
    cell = make_cell()
    tracks = [cell.ask((seed, 7), max_tokens=200) for seed in range(4)]
    for _ in range(2000):
        if all(track.sequence.finished for track in tracks):
            break
        cell.verifier.decline = NO_PAGE
        await calm(2)
    await cell.finish(*tracks)
    assert [await read(track) for track in tracks] == [answer_of((seed, 7), 200) for seed in range(4)]
    assert cell.metrics.value("num_preemptions_total") > 3
    await calm()
    assert cell.clean()


async def test_who_was_preempted_goes_before_everybody_younger(make_cell: MakeCell) -> None:
    cell = make_cell(pages=12)
    first = [cell.ask((seed, 7), max_tokens=60) for seed in range(2)]
    await calm(4)
    late = [cell.ask((seed, 9), max_tokens=60) for seed in range(2, 5)]
    cell.verifier.decline = NO_PAGE
    await cell.finish(*first, *late)
    ended = sorted((*first, *late), key=lambda track: track.tally.first or 0.0)
    assert [track.sequence.number for track in ended] == sorted(track.sequence.number for track in ended)
    assert [await read(track) for track in late] == [answer_of((seed, 9), 60) for seed in range(2, 5)]


async def test_sequences_are_taken_in_by_what_they_hold(make_cell: MakeCell) -> None:
    cell = make_cell(pages=20)  # of 16 tokens
    cell.verifier.holding.add("verify")
    tracks = [cell.ask((seed, 7), max_tokens=300) for seed in range(6)]  # 19 pages each in the end
    await calm()
    assert cell.admission.running == 4, "five pages each, growth included"
    lone = tracks[0]
    assert paging.fits(lone, [], page_size=16, pages_total=19)
    assert not paging.fits(lone, [], page_size=16, pages_total=18)
    assert paging.youngest(tracks[:4]) is tracks[3]
    assert paging.youngest([]) is None


async def test_a_drafter_without_room_costs_drafts_and_nothing_else(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.drafters[0].full = True
    tracks = [cell.ask((seed, 7), max_tokens=12) for seed in range(3)]
    await cell.finish(*tracks)
    assert [await read(track) for track in tracks] == [answer_of((seed, 7), 12) for seed in range(3)]
    assert cell.metrics.value("refusals_total", reason="open_no_pages") > 0
    assert cell.metrics.value("empty_blocks_total", reason="no_drafter") == sum(track.tally.rounds for track in tracks)
    assert cell.metrics.value("num_preemptions_total") == 0
