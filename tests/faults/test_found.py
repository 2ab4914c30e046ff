"""What the rows found once, as fixed examples."""

import asyncio

import pytest

from tests.faults.plan import Action, Plan, once
from tests.faults.rows.r11_lying_drafter import LIES, SPEED, STEPS, Lying, answers
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream


async def through_a_front_end(cell: SimulatedCell) -> Stream:
    return await cell.ask([7, 9], max_tokens=30, at="frontend/0", timeout=20.0)


@pytest.mark.parametrize("place", [2, 3, 5])
def test_a_lost_batch_of_commits_ends_the_answer_where_it_stands(place: int) -> None:
    plain = simulate(through_a_front_end, frontends=1, synthetic=True)
    plan = Plan(once("CellBatch", Action.DROP, at=place))
    answer = simulate(through_a_front_end, frontends=1, synthetic=True, plan=plan)
    assert plan.hurt
    assert answer.error is not None
    assert len(answer.ids) < 30
    assert answer.ids == plain.ids[: len(answer.ids)]


@pytest.mark.parametrize("kind", ["ControlDown.released", "RoundsCommand.close"])
def test_what_a_lost_release_left_behind_is_freed_by_what_is_kept(kind: str) -> None:
    async def story(cell: SimulatedCell) -> None:
        leaving = asyncio.create_task(cell.ask([9, 9], max_tokens=500))
        await cell.after(0.05)
        leaving.cancel()
        await cell.after(0.5)
        assert cell.left_over(), "the release was lost"
        await cell.until(lambda: not cell.left_over(), within_s=60.0)

    simulate(story, synthetic=True, plan=Plan(once(kind, Action.DROP)))


def test_a_drafter_that_is_always_sure_and_always_wrong_is_done_without() -> None:
    """Trust in its confidence may sink as low as it deserves: simulated seconds, not real ones."""
    settings = {"synthetic": True, "seconds": STEPS}
    _, plain_s = simulate(lambda cell: answers(cell, "off"), **settings)
    _, took = simulate(answers, plan=Lying(LIES["random ids, confidence 1"]), **settings)
    assert plain_s / took >= SPEED
