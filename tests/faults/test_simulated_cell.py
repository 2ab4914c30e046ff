"""What runs in it is the real thing, stories repeat themselves, faults do what they say."""

import asyncio

from tests.faults.boundaries import kinds
from tests.faults.plan import Action, Plan, storm
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream

PROMPT = [5, 9, 17, 33]


async def calm(cell: SimulatedCell) -> list[int]:
    answer = await cell.ask(PROMPT, max_tokens=40)
    assert answer.error is None
    assert answer.end is not None
    return answer.ids


def test_a_story_with_a_seed_is_the_same_story_again() -> None:
    def told(seed: int) -> tuple[list[Stream], dict[tuple[str, Action], int], float]:
        plan = Plan(storm(seed, 0.02, actions=[Action.TWICE, Action.LATE, Action.CUT]))

        async def story(cell: SimulatedCell) -> tuple[list[Stream], float]:
            asked = [cell.ask([n + 2, n + 3], max_tokens=30) for n in range(4)]
            return list(await asyncio.gather(*asked)), cell.now

        answers, ended = simulate(
            story, seed=seed, verifiers=2, drafters=2, synthetic=True, plan=plan
        )
        return answers, dict(plan.hurt), ended

    first, again, other = told(1), told(1), told(2)
    assert first[1], "the storm did something"
    assert [a.ids for a in first[0]] == [a.ids for a in again[0]] == [a.ids for a in other[0]]
    assert [a.times for a in first[0]] == [a.times for a in again[0]]
    assert first[1:] == again[1:]
    assert first[1:] != other[1:]


def test_a_frozen_verifier_is_given_up_and_its_late_words_change_nothing() -> None:
    async def story(cell: SimulatedCell) -> tuple[list[int], float]:
        asking = asyncio.create_task(cell.ask(PROMPT, max_tokens=40))
        await cell.after(0.05)
        cell.freeze(hung := cell.holder())
        answer = await asking
        cell.thaw(hung)
        await cell.after(5.0)
        await cell.connected(3)
        assert cell.left_over() == {}
        assert answer.error is None
        return answer.ids, answer.longest_gap_s

    ids, gap = simulate(story, verifiers=2, synthetic=True, watch_s=2.5)
    assert ids == simulate(calm, synthetic=True)
    assert 2.0 < gap < 4.0


def test_every_message_of_the_protocol_has_a_kind() -> None:
    known = {kind for _, _, kind in kinds()}
    assert {
        "ControlDown.plan",
        "ControlUp.report",
        "RoundsEvent.blocks",
        "FeatureChunk",
        "CellBatch",
    } <= known
    plan = Plan()
    simulate(calm, plan=plan, synthetic=True)
    assert set(plan.seen) - {""} <= known, '"" is what clients say'
