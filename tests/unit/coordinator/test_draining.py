"""Workers that leave in order: nobody new, who is there finishes or moves, and no answer changes."""

from collections.abc import AsyncIterator, Callable

import pytest_asyncio
from fakes import FakeDrafter, FakeVerifier, ToyCell, answer_of, calm, read

from coordinator.lanes.lane import Conduct
from coordinator.lanes.ports import Judged
from coordinator.queue.admission import Bounds
from dspark.types import Verdict

MakeCell = Callable[..., ToyCell]


@pytest_asyncio.fixture
async def make_cell() -> AsyncIterator[MakeCell]:
    cells: list[ToyCell] = []

    def make(**settings: object) -> ToyCell:
        cells.append(ToyCell(**settings))
        return cells[-1]

    yield make
    for cell in cells:
        await cell.close()


async def test_a_verifier_that_leaves_gets_nobody_new_and_its_own_finish_there(make_cell: MakeCell) -> None:
    cell = make_cell()
    cell.verifier.holding.add("verify")
    old = cell.ask((5, 6), max_tokens=20)
    await calm()
    cell.lane.drain(10.0)
    second = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.add_lane(second)
    new = cell.ask((7, 8), max_tokens=20)
    cell.verifier.let_go("verify")
    await cell.finish(old, new)
    assert (await read(old), await read(new)) == (answer_of((5, 6), 20), answer_of((7, 8), 20))
    assert (cell.verifier.prefills, second.prefills) == (1, 1)
    assert old.sequence.epoch == 0


async def test_who_has_not_ended_in_time_moves_and_loses_nothing(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(max_handovers=0))
    tracks = [cell.ask((seed, 6), max_tokens=60) for seed in range(3)]
    await calm(30)
    cell.verifier.holding.add("verify")
    await calm()
    cell.lane.drain(5.0)
    second = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.add_lane(second)
    await cell.clock.advance(3.9)
    assert not second.prefills
    await cell.clock.advance(0.2)
    assert not cell.verifier.sequences, "all of it is free before the process ends"
    cell.verifier.let_go("verify")  # verdicts of a moment that is over
    await cell.finish(*tracks)
    await calm()
    assert [await read(track) for track in tracks] == [answer_of((seed, 6), 60) for seed in range(3)]
    assert [track.handovers for track in tracks] == [0, 0, 0], "planned, so no loss"
    assert cell.metrics.value("handovers_total", reason="drained") == 3
    assert cell.metrics.value("dropped_total", kind="verdict", reason="stale") == 3


async def test_a_verdict_of_before_the_move_is_not_said_after_it(make_cell: MakeCell) -> None:
    """The sequence is in the same state again by then, on another verifier and under another epoch."""
    cell = make_cell()
    cell.verifier.holding.add("verify")
    track = cell.ask((5, 6), max_tokens=20)
    await calm()
    second = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    second.holding.add("verify")
    cell.add_lane(second)
    cell.lane.move_all()
    await calm()
    assert (track.sequence.epoch, len(second.held)) == (1, 1)
    said = track.answer.log.ids()
    old, cursor = cell.verifier.held[0], track.sequence.cursor
    wrong = Verdict(cursor._replace(epoch=0, round=1), 0, 1, 0, 0)
    cell.verifier.held[0] = (old[0], old[1], Judged((wrong,), 0.001, 1))
    cell.verifier.let_go("verify")
    await calm()
    assert track.answer.log.ids() == said
    second.let_go("verify")
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 20)


async def test_who_is_there_when_a_leaving_verifier_ends_early_moves_and_counts_as_no_loss(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(max_handovers=0))
    running = cell.ask((5, 6), max_tokens=20)
    await calm(20)
    cell.verifier.holding.update(("verify", "prefill"))
    on_the_way = cell.ask((7, 8), max_tokens=20)
    await calm()
    cell.lane.drain(10.0)
    cell.lose_verifier()
    cell.verifier = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.lane = cell.add_lane(cell.verifier)
    await cell.finish(running, on_the_way)
    assert (await read(running), await read(on_the_way)) == (answer_of((5, 6), 20), answer_of((7, 8), 20))
    assert (running.handovers, on_the_way.handovers) == (0, 0)
    assert cell.metrics.value("handovers_total", reason="drained") == 2
    assert cell.metrics.value("handovers_total", reason="lost") == 0


async def test_without_another_verifier_answers_wait_for_one(make_cell: MakeCell) -> None:
    cell = make_cell(bounds=Bounds(verifier_wait_s=20.0))
    track = cell.ask(max_tokens=40)
    await calm(20)
    cell.verifier.holding.add("verify")
    await calm()
    cell.lane.drain(1.0)
    await cell.clock.advance(1.0)
    assert cell.admission.queued == 1
    cell.lose_verifier()
    await cell.clock.advance(10.0)
    cell.verifier = FakeVerifier(cell.talk, cell.drafters, "verify/0", incarnation=22)
    cell.lane = cell.add_lane(cell.verifier)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 40)


async def test_sequences_of_a_drafter_that_leaves_go_to_another_one_without_a_prefill(make_cell: MakeCell) -> None:
    cell = make_cell(drafters=1)
    track = cell.ask(max_tokens=120)
    await calm(20)
    first = cell.drafters[0]
    cell.lane.drafter_leaves(first)
    await calm(6)
    assert track.drafter is first, "it is better than none"
    second = FakeDrafter(cell.talk, "draft/1", incarnation=12)
    cell.drafters.append(second)
    cell.verifier.drafters.append(second)
    cell.join(cell.lane, second)
    await calm(6)
    assert track.drafter is second
    assert not first.rows
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 120)
    assert cell.verifier.prefills == 1
    assert cell.metrics.value("resends_total", reason="attached") == 1
    late = cell.ask((8, 9), max_tokens=5)
    await cell.finish(late)
    assert "draft/0 <- open s2" not in "\n".join(cell.talk.lines)


async def test_a_lost_verdict_is_asked_for_once_more(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(verify_s=10.0, cohorts=1))
    track = cell.ask(max_tokens=30)
    await calm(20)
    cell.verifier.loses_replies = 1
    await calm()
    await cell.clock.advance(5.0)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 30)
    assert track.sequence.epoch == 0
    assert cell.metrics.value("asked_again_total", kind="verify") == 1


async def test_a_verifier_that_answers_neither_time_is_let_go(make_cell: MakeCell) -> None:
    cell = make_cell(waits=Conduct(verify_s=10.0, cohorts=1))
    track = cell.ask(max_tokens=30)
    await calm(20)
    cell.verifier.loses_replies = 2
    await calm()
    await cell.clock.advance(10.0)
    assert cell.verifier.closed_because == "no verdict for 10 s"
    cell.verifier = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.lane = cell.add_lane(cell.verifier)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 30)
