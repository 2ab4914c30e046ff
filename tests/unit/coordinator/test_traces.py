"""The lane's conversation with its workers, compared word by word with tests/traces.

A changed conversation shows up as a diff to be understood. `DSPARK_TRACES=write` records them anew.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes import FakeVerifier, ToyCell, answer_of, calm, read

from coordinator.lanes.drafting import DraftWaits
from coordinator.lanes.lane import Conduct
from dspark.errors import Cancelled

FOLDER = Path(__file__).parents[2] / "traces"


async def one_answer() -> ToyCell:
    """One request, one drafter: a prompt of two tokens and an answer of twelve."""
    cell = ToyCell()
    track = cell.ask(max_tokens=12)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 12)
    return cell


async def without_drafts() -> ToyCell:
    """Policy off: no drafter hears of it and no rows are kept."""
    cell = ToyCell()
    track = cell.ask(max_tokens=4, policy="off")
    await cell.finish(track)
    return cell


async def join_and_leave() -> ToyCell:
    """A second request arrives in the middle of a round, and leaves before the first one ends."""
    cell = ToyCell()
    cell.verifier.holding.add("verify")
    first = cell.ask((5, 6), max_tokens=14)
    await calm()
    second = cell.ask((8, 9), max_tokens=3, policy="fixed:1")
    await calm()
    cell.verifier.let_go("verify")
    await cell.finish(first, second)
    return cell


async def lost_drafter() -> ToyCell:
    """The drafter dies in the middle of a round; another process under its name is filled by a resend."""
    cell = ToyCell()
    cell.verifier.holding.add("verify")
    track = cell.ask(max_tokens=16)
    await calm()
    cell.lose_drafter(cell.drafters[0])
    cell.verifier.let_go("verify")
    cell.verifier.holding.add("verify")
    await calm()
    await cell.clock.advance(1.0)
    cell.new_drafter(incarnation=99)
    cell.verifier.let_go("verify")
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 16)
    return cell


async def late_draft() -> ToyCell:
    """A cohort's draft misses its deadline; nothing more is asked of that drafter until it has answered."""
    cell = ToyCell(waits=Conduct(draft=DraftWaits(deadline_s=0.1)))
    cell.drafters[0].holding.add("draft")
    track = cell.ask(max_tokens=9)
    await calm()
    cell.verifier.holding.add("verify")
    await cell.clock.advance(0.2)
    cell.drafters[0].let_go("draft")
    await calm()
    cell.verifier.let_go("verify")
    await cell.finish(track)
    return cell


async def lost_verifier() -> ToyCell:
    """The verifier dies in the middle of a round; prompt and committed tokens go to another one, epoch raised."""
    cell = ToyCell()
    track = cell.ask(max_tokens=10)
    await calm(12)
    cell.verifier.holding.add("verify")
    await calm()
    cell.lose_verifier()
    cell.verifier = FakeVerifier(cell.talk, cell.drafters, "verify/1", incarnation=22)
    cell.lane = cell.add_lane(cell.verifier)
    await cell.finish(track)
    assert await read(track) == answer_of((5, 6), 10)
    return cell


async def cancelled() -> ToyCell:
    """A client goes away in the middle of a round: both pools forget its sequence at once, its neighbour goes on."""
    cell = ToyCell()
    cell.verifier.holding.add("verify")
    gone, stays = cell.ask((5, 6), max_tokens=50), cell.ask((8, 9), max_tokens=5)
    await calm()
    cell.admission.ended(gone, Cancelled("the client went away"))
    cell.verifier.let_go("verify")
    await cell.finish(stays)
    return cell


STORIES = [one_answer, without_drafts, join_and_leave, lost_drafter, late_draft, lost_verifier, cancelled]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_the_conversation_is_the_recorded_one(story: Callable[[], Awaitable[ToyCell]]) -> None:
    cell = await story()
    await calm()
    assert cell.clean()
    await cell.close()
    said = "\n".join([f"# {story.__doc__}", *cell.talk.lines]) + "\n"
    path = FOLDER / f"{story.__name__}.txt"
    if os.environ.get("DSPARK_TRACES") == "write":
        path.write_text(said)
    assert said == path.read_text()


def test_every_trace_has_its_story() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == {story.__name__ for story in STORIES}
