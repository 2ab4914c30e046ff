"""Pools that change under load in simulated time: the controller, autoscaler and drain of a
deployment over real processes, sixteen streams, and every answer the one an undisturbed cell gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import Pending, StartedProcess
from deploy.probe import ControlAnnouncer
from deploy.topology import Replica, desired
from faults.simulated import SimulatedCell, simulate
from faults.streams import Stream

STREAMS = 16
STEPS = [(1, 3), (1, 0), (1, 1), (2, 1), (1, 1), (2, 2), (1, 1)]  # verifiers, drafters
LAW = {"temperature": 1.0, "rule": "coupled", "policy": "fixed:3"}


class CellFleet:
    """Processes of a simulated cell."""

    def __init__(self, cell: SimulatedCell) -> None:
        self._cell = cell

    def _started(self, name: str) -> StartedProcess:
        process = self._cell.processes[name]
        return StartedProcess(process.endpoint, process.incarnation, 1)

    async def adopt(self) -> Mapping[str, StartedProcess]:
        return {name: self._started(name) for name in self._cell.processes}

    async def launch(self, replica: Replica) -> StartedProcess:
        await self._cell.begin(replica.name)
        return self._started(replica.name)

    async def end(self, name: str, grace_s: float) -> None:
        if grace_s > 0:
            await self._cell.terminate(name, grace_s)
        else:
            self._cell.kill(name)
        self._cell.processes.pop(name, None)

    def misfit(self, replicas: Collection[Replica]) -> str:
        return ""

    def pending(self, name: str) -> Pending:
        return Pending()


@asynccontextmanager
async def supervised(
    cell: SimulatedCell, autoscale: AutoscaleConfig | None = None
) -> AsyncIterator[Controller]:
    topology = desired(ClusterConfig(target="t", drafter="d", verifiers=1, drafters=1), {})
    controller = Controller(
        topology, CellFleet(cell), ControlAnnouncer(None), drain_s=5.0, autoscale=autoscale
    )
    watching = asyncio.create_task(controller.run())
    try:
        await settled(cell, controller)
        yield controller
    finally:
        watching.cancel()


async def settled(cell: SimulatedCell, controller: Controller) -> None:
    """Until the wanted sizes serve and who had to leave has left."""

    def quiet() -> bool:
        rows = controller.report()
        return all(row["phase"] == "serving" for row in rows) and len(
            [name for name in cell.processes if name[0] in "vd"]
        ) == sum(controller.sizes())

    await cell.until(quiet, within_s=120.0, each_s=0.05)
    await cell.connected(sum(controller.sizes()))


def _prompt(stream: int) -> list[int]:
    return [5 + stream, 9, 17, 33]


async def calm(cell: SimulatedCell) -> dict[int, list[int]]:
    asked = [cell.ask(_prompt(n), max_tokens=16, seed=n, **LAW) for n in range(STREAMS)]
    answers = await asyncio.gather(*asked)
    assert all(answer.error is None for answer in answers)
    return {n: answer.ids for n, answer in enumerate(answers)}


def test_answers_are_the_same_while_both_pools_grow_shrink_and_vanish() -> None:
    async def story(cell: SimulatedCell) -> tuple[dict[int, list[Stream]], dict[str, float]]:
        over = asyncio.Event()
        answers: dict[int, list[Stream]] = {n: [] for n in range(STREAMS)}

        async def stream(n: int) -> None:
            while not over.is_set():
                answers[n].append(await cell.ask(_prompt(n), max_tokens=16, seed=n, **LAW))

        async with supervised(cell) as controller:
            streams = [asyncio.create_task(stream(n)) for n in range(STREAMS)]
            for sizes in STEPS:
                await cell.after(0.03)
                controller.resize(*sizes)
                await settled(cell, controller)
                assert cell.metric("pool_replicas", pool="verify", state="serving") == sizes[0]
            over.set()
            await asyncio.gather(*streams)
            await cell.until(lambda: cell.left_over() == {})
            return answers, {
                "losses": cell.metric("worker_losses_total"),
                "drafts": cell.metric("spec_decode_num_drafts_total"),
            }

    # Passes that take long beside the controller's looks, so that few rounds are computed for real.
    slow = {"judge_cohort": 0.4, "timed_draft": 0.1, "prefill_next": 0.1}
    answers, seen = simulate(story, verifiers=1, drafters=1, seconds=slow)
    wanted = simulate(calm)
    for n, its in answers.items():
        assert its, f"stream {n} was never answered"
        assert [answer.error for answer in its] == [None] * len(its)
        assert all(answer.ids == wanted[n] for answer in its), f"stream {n}"
    assert seen["losses"] == 0, "whoever left was let go, not lost"
    assert seen["drafts"] > 0


def _draft_pass(sequences: int) -> float:
    return 0.004 + 0.006 * sequences


def _of_waiting(timed_draft: Any) -> float:
    """The drafter's next pass takes all that wait for it."""
    waiting = timed_draft.__self__._waiting.values()
    return _draft_pass(sum(len(asked.items) for queue in waiting for asked in queue))


def _wanted(streams: int, verify_s: float, cohorts: int) -> int:
    """Fewest drafters that are busy 70 % of a cycle at most, when so many cohorts take turns in the
    lane."""
    for drafters in range(1, 7):
        draft_s = _draft_pass(-(-streams // cohorts // drafters))
        cycle_s = draft_s + verify_s if cohorts == 1 else cohorts * max(verify_s, draft_s)
        if cohorts * draft_s <= 0.7 * cycle_s:
            return drafters
    return 7


@pytest.mark.slow
@pytest.mark.parametrize("streams", [8, 16])
def test_the_autoscaler_reaches_what_the_costs_ask_for_and_stays(streams: int) -> None:
    verify_s = 0.03
    patience = {
        "up_after_s": 4,
        "down_after_s": 20,
        "zero_after_s": 40,
        "cool_down_s": 6,
        "look_s": 1,
    }
    # By how busy they are: simulated jobs take up their orders when they end, so what orders wait
    # holds the pass too.
    config = AutoscaleConfig(enabled=True, max_drafters=6, draft_wait_ms=1000, **patience)

    async def story(cell: SimulatedCell) -> list[tuple[float, int]]:
        over = asyncio.Event()
        sizes: list[tuple[float, int]] = []

        async def stream(n: int) -> None:
            while not over.is_set():
                answer = await cell.ask(_prompt(n), max_tokens=200, policy="fixed:3")
                assert answer.error is None

        async def watch(controller: Controller) -> None:
            while True:
                drafters = controller.sizes()[1]
                if not sizes or sizes[-1][1] != drafters:
                    sizes.append((cell.now, drafters))
                await cell.after(0.5)

        async with supervised(cell, config) as controller:
            watching = asyncio.create_task(watch(controller))
            working = [asyncio.create_task(stream(n)) for n in range(streams)]
            await cell.after(90.0)
            over.set()
            await asyncio.gather(*working)
            await cell.after(80.0)  # nobody is there any more
            watching.cancel()
        return sizes

    sizes = simulate(
        story, synthetic=True, seconds={"judge_cohort": verify_s, "timed_draft": _of_waiting}
    )
    counts = [drafters for _, drafters in sizes]
    top = max(counts)
    assert _wanted(streams, verify_s, 1) <= top <= _wanted(streams, verify_s, 2) + 1, counts
    up, down = counts[: counts.index(top) + 1], counts[counts.index(top) :]
    assert up == sorted(set(up)), "one way up"
    assert down == sorted(set(down), reverse=True), "and one way down"
    assert counts[-1] == 0, "an idle cell gives its drafters back"
