"""Rounds between a real verifier and real drafters, with a small coordinator beside them: the
answers are the target's.

The oracle is the one-page loop, decoding without drafts: at temperature 0 and under the coupled
rule its tokens are those of every schedule, drafter and hand-over.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from conductor import conducting, planned
from faults.oracle import plain
from faults.pair import DRAFTER, TARGET, VOCABULARY

from dspark.rounds.events import How, Release, Why
from dspark.rounds.plan import Plan, PlanKind
from dspark.types import Rule, SamplingParams
from tests.services.cell import Cell
from tests.waiting import until

GREEDY = SamplingParams(temperature=0.0)
PLANS = {
    "off": planned(PlanKind.OFF, 0),
    "fixed": planned(PlanKind.FIXED, 3),
    "threshold": planned(PlanKind.THRESHOLD, 5, 0.5),
    "price": planned(PlanKind.PRICE, 5, 0.3),
}


@pytest_asyncio.fixture
async def cell() -> AsyncIterator[Cell]:
    """A verifier and a drafter."""
    async with Cell(TARGET, DRAFTER) as made:
        await made.verifier()
        await made.drafter()
        yield made


def prompts(count: int, longest: int = 40, seed: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [
        [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(4, longest))]
        for _ in range(count)
    ]


def rows_of(process: Any, direction: str) -> tuple[float, float]:
    """Feature rows that a worker counted, and their bytes."""
    value = process.metrics.value
    return (
        value("feature_rows_total", direction=direction),
        value("bytes_total", direction=direction, kind="features"),
    )


@pytest.mark.parametrize("window", [0, 2])
@pytest.mark.parametrize("kind", PLANS)
async def test_answers_are_those_of_the_reference_loop(cell: Cell, kind: str, window: int) -> None:
    plan = Plan(PLANS[kind].terms, 1, window, 0.002)
    all_params = [
        GREEDY,
        SamplingParams(temperature=1.0, seed=11, rule=Rule.COUPLED),
        SamplingParams(temperature=0.7, seed=3, rule=Rule.COUPLED),
    ]
    async with conducting(cell.verifiers[0], plan) as conductor:
        conductor.know(1, cell.drafters[0])
        if kind != "off":  # short answers would be over before the stream is there
            first = conductor.ask(prompts(1)[0], GREEDY, 2000, drafter=1)
            await until(lambda: any(each.drafter for each in first.rounds))
            conductor.leave(first)
        asked = [
            (
                prompt,
                all_params[place % 3],
                conductor.ask(prompt, all_params[place % 3], 30, drafter=1),
            )
            for place, prompt in enumerate(prompts(6))
        ]
        for prompt, params, answer in asked:
            (tokens,) = await conductor.tokens(answer)
            assert tokens == plain(prompt, params, 30)
        assert {event.what for event in conductor.health} <= {"late"}, "on a crowded machine"
        assert cell.verifiers[0].metrics.value("forward_seconds_count", kind="verify") > 0, (
            "so it is warm"
        )
        assert cell.verifiers[0].metrics.value("verify_batch_tokens_count") > 0
        verified = sum(each.verified for _, _, answer in asked for each in answer.rounds)
        accepted = sum(each.accepted for _, _, answer in asked for each in answer.rounds)
        if kind == "off":
            assert verified == 0
        else:
            assert 0 < accepted <= verified
            assert all(each.drafter in (0, 1) for _, _, answer in asked for each in answer.rounds)
            await until(
                lambda: rows_of(cell.drafters[0], "received") == rows_of(cell.verifiers[0], "sent")
            )
            assert all(rows_of(cell.drafters[0], "received"))
    await cell.freed()


async def test_two_cohorts_take_turns_and_answers_are_the_same(cell: Cell) -> None:
    async with conducting(
        cell.verifiers[0], planned(PlanKind.PRICE, window=2, cohorts=2)
    ) as conductor:
        conductor.know(1, cell.drafters[0])
        asked = [(prompt, conductor.ask(prompt, GREEDY, 30, drafter=1)) for prompt in prompts(6)]
        for prompt, answer in asked:
            assert (await conductor.tokens(answer))[0] == plain(prompt, GREEDY, 30)
        passes = [{each.sequence & 1 for each in told.report.rounds} for told in conductor.reports]
        assert all(len(parities) == 1 for parities in passes)
    await cell.freed()


async def test_pages_run_out_and_the_youngest_begin_again() -> None:
    async with Cell(TARGET, DRAFTER) as cell:
        plan = planned(PlanKind.FIXED, 3, window=2)
        async with conducting(await cell.verifier(kv_tokens=256), plan) as conductor:
            conductor.know(1, await cell.drafter())
            some = prompts(5, longest=20)
            asked = [conductor.ask(prompt, GREEDY, 60, drafter=1) for prompt in some]
            conductor.begin_again = True
            for answer in asked:  # whose prompt found no page comes again
                answer.refused = _Forgiving()
            for prompt, answer in zip(some, asked, strict=True):
                assert (await conductor.tokens(answer))[0] == plain(prompt, GREEDY, 60)
            assert any(each.why is Why.OUT_OF_PAGES for each in conductor.released)
        await cell.freed()


class _Forgiving(list[Any]):
    """Remembers no refusal."""

    def append(self, refused: Any) -> None:
        pass


async def test_sequences_settle_and_go_on_under_another_epoch(cell: Cell) -> None:
    params = SamplingParams(temperature=1.0, seed=8, rule=Rule.COUPLED)
    async with conducting(cell.verifiers[0], planned(PlanKind.PRICE, window=2)) as conductor:
        conductor.know(1, cell.drafters[0])
        some = prompts(4)
        asked = [conductor.ask(prompt, params, 60, drafter=1) for prompt in some]
        for count in (3, 9, 20):
            await until(lambda count=count: all(len(answer.tokens) > count for answer in asked))  # type: ignore[misc]
            for answer in asked:
                if not answer.done.is_set():
                    conductor.port.tell([Release(answer.number, answer.epoch, How.SETTLE)])
        for prompt, answer in zip(some, asked, strict=True):
            assert (await conductor.tokens(answer))[0] == plain(prompt, params, 60)
        assert sum(answer.moves for answer in asked) >= 4
    await cell.freed()


async def test_a_prefix_that_was_seen_is_spared_with_its_rows(cell: Cell) -> None:
    (prompt,) = prompts(1, longest=41, seed=2)
    prompt = (prompt * 50)[:200]
    async with conducting(cell.verifiers[0], planned(PlanKind.FIXED, 5, window=2)) as conductor:
        conductor.know(1, cell.drafters[0])
        first = conductor.ask(prompt, GREEDY, 12, drafter=1)
        await conductor.tokens(first)
        await until(lambda: cell.verifiers[0].engine.held.sequences == 0)
        second = conductor.ask(prompt, GREEDY, 40, drafter=1)
        (tokens,) = await conductor.tokens(second)
        assert (first.cached, second.cached >= 192) == (0, True)
        metrics = cell.verifiers[0].metrics
        assert metrics.value("prefix_cache_hits_total") == second.cached
        assert metrics.value("prefix_cache_queries_total") == 2 * len(prompt)
        assert tokens == plain(prompt, GREEDY, 40)
        assert any(each.verified for each in second.rounds), "its rows came from the cache"
