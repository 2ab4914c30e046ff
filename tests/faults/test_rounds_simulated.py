"""Rounds between a verifier and two drafters in simulated time: every message between them is hurt
in every way.

Real engines, services and codecs; a small coordinator beside them, whose own stream is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from conductor import Answer, Conductor, conducting, planned

from dspark.rounds.plan import PlanKind
from dspark.types import Rule, SamplingParams
from faults import oracle, pair
from faults.boundaries import kinds
from faults.plan import Action, Plan, once, storm
from faults.simulated import SimulatedCell, in_memory
from faults.simulation import Simulation

T = TypeVar("T")

ALL_PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.8, seed=7, rule=Rule.COUPLED),
)
ROOM = 40
SPOKEN = sorted(
    {kind for method, _, kind in kinds() if method.endswith(("/Rounds", "Features/Push"))}
)
PLAN = planned(PlanKind.PRICE, 4, 0.2, window=2, cohorts=2)


def simulate(
    story: Callable[[SimulatedCell, Conductor], Awaitable[T]],
    *,
    seed: int = 0,
    plan: Plan | None = None,
    **more: Any,
) -> T:
    async def main() -> T:
        cell = SimulatedCell(plan=plan, **more)
        cell.tape = None
        with in_memory(cell):
            for name in ("verify/0", "draft/0", "draft/1"):
                await cell.begin(name)
            async with conducting(cell.processes["verify/0"], PLAN) as conductor:
                for place in range(2):
                    conductor.know(1 + place, cell.processes[f"draft/{place}"])
                return await story(cell, conductor)

    with Simulation(seed) as simulation:
        return simulation.run(main())


def ask(conductor: Conductor, count: int = 4) -> list[Answer]:
    return [
        conductor.ask(
            pair.prompt(place, 12 + 30 * (place % 3)),
            ALL_PARAMS[place % 2],
            ROOM,
            drafter=1 + place // 2 % 2,
        )
        for place in range(count)
    ]


_plain = functools.cache(oracle.plain)


def truth(answer: Answer) -> list[int]:
    return _plain(tuple(answer.prompt), answer.params, answer.room)


async def ended(cell: SimulatedCell, conductor: Conductor, answers: list[Answer]) -> None:
    for answer in answers:
        assert (await conductor.tokens(answer))[0] == truth(answer)
    assert conductor.why_lost is None
    alive = [name for name in cell.processes if cell.network.nodes[name].alive]
    await cell.until(lambda: not any(map(cell.held, alive)), within_s=60, each_s=0.1)


async def calm(cell: SimulatedCell, conductor: Conductor) -> int:
    """Verified slots."""
    answers = ask(conductor)
    await ended(cell, conductor, answers)
    return sum(each.verified for answer in answers for each in answer.rounds)


def test_a_calm_story_says_every_message_but_the_rare_ones() -> None:
    plan = Plan()
    assert simulate(calm, plan=plan) > 20
    # of long rows, long answers and leaving
    rare = {"RoundsCommand.rows", "RoundsCommand.keep"}
    assert {kind for kind in SPOKEN if not plan.seen[kind]} == rare


@pytest.mark.parametrize(
    "action",
    [
        pytest.param(Action.DROP, marks=pytest.mark.slow),
        pytest.param(Action.TWICE, marks=pytest.mark.slow),
        pytest.param(Action.LATE, marks=pytest.mark.slow),
        pytest.param(Action.SWAP, marks=pytest.mark.slow),
        Action.CUT,
    ],
)
def test_no_message_between_verifier_and_drafter_changes_an_answer(action: Action) -> None:
    calm_plan = Plan()
    simulate(calm, plan=calm_plan)
    hurt = 0
    for kind in SPOKEN:
        for at in sorted({1, max(calm_plan.seen[kind] // 2, 1)}) if calm_plan.seen[kind] else ():
            plan = Plan(once(kind, action, at=at, late_s=0.7))
            simulate(calm, plan=plan)
            hurt += sum(plan.hurt.values())
    assert hurt >= 8


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]
)
def test_storms_between_verifier_and_drafters_change_no_answer(seed: int) -> None:
    plan = Plan(storm(seed, 0.05, kinds=SPOKEN, late_s=0.3))
    simulate(calm, seed=seed, plan=plan)
    assert plan.hurt
