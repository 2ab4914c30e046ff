"""Pools that change under load in simulated time: the controller, autoscaler and drain of a
deployment over real processes, sixteen streams, and every answer the one an undisturbed cell gives.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deploy.autoscale import AutoscaleConfig
from deploy.config import ClusterConfig
from deploy.controller import Controller
from deploy.fleet import StartedProcess, Waits
from deploy.probe import ControlAnnouncer
from deploy.topology import Replica, desired
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream, asking

STREAMS = 16
STEPS = [(1, 3), (1, 0), (1, 1), (2, 1), (1, 1), (2, 2), (1, 1)]  # verifiers, drafters
LAW = {"temperature": 1.0, "rule": "coupled", "policy": "fixed:3"}


class CellFleet:
    def __init__(self, cell: SimulatedCell) -> None:
        self._cell = cell

    def _started(self, name: str) -> StartedProcess:
        process = self._cell.processes[name]
        return StartedProcess(process.endpoint, process.incarnation, 1)

    async def adopt(self) -> Mapping[str, StartedProcess]:
        return {name: self._started(name) for name in self._cell.processes}

    async def launch(self, replica: Replica, waits: Waits) -> StartedProcess:
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


@asynccontextmanager
async def supervised(
    cell: SimulatedCell, autoscale: AutoscaleConfig | None = None
) -> AsyncIterator[Controller]:
    config = ClusterConfig(target="t", drafter="d", drain_s=5.0)
    controller = Controller(
        desired(config, {}),
        CellFleet(cell),
        ControlAnnouncer(None),
        config,
        autoscale or AutoscaleConfig(),
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


def streams_of(count: int, **options: Any) -> list[Stream]:
    return [Stream([5 + n, 9, 17, 33], {"seed": n, **options}) for n in range(count)]


SHORT = streams_of(STREAMS, max_tokens=16, **LAW)


async def calm(cell: SimulatedCell) -> list[Stream]:
    async with asking(cell, SHORT) as asked:
        pass
    assert all(answer.error is None for answer in asked)
    return asked


def test_answers_are_the_same_while_both_pools_grow_shrink_and_vanish() -> None:
    async def story(cell: SimulatedCell) -> list[Stream]:
        async with supervised(cell) as controller:
            async with asking(cell, SHORT) as asked:
                for sizes in STEPS:
                    await cell.after(0.03)
                    controller.resize(*sizes)
                    await settled(cell, controller)
                    assert cell.metric("pool_replicas", pool="verify", state="serving") == sizes[0]
            await cell.until(lambda: cell.left_over() == {})
        assert cell.metric("worker_losses_total") == 0, "whoever left was let go, not lost"
        assert cell.metric("spec_decode_num_drafts_total") > 0
        return asked

    # Passes that take long beside the controller's looks, so that few rounds are computed for real.
    slow = {"judge_cohort": 0.4, "timed_draft": 0.1, "prefill_next": 0.1}
    wanted = simulate(calm)
    for n, answer in enumerate(simulate(story, seconds=slow)):
        assert answer.error is None
        assert answer.ids == wanted[n % STREAMS].ids, f"stream {n % STREAMS}"


def _draft_pass(sequences: int) -> float:
    return 0.004 + 0.006 * sequences


def _of_waiting(timed_draft: Any) -> float:
    """The drafter's next pass takes all that wait for it."""
    waiting = timed_draft.__self__._waiting.values()
    return _draft_pass(sum(len(asked.items) for queue in waiting for asked in queue))


def _wanted(streams: int, verify_s: float, cohorts: int) -> int:
    """Fewest drafters that are busy 70 % of a cycle of so many cohorts."""
    for drafters in range(1, 7):
        draft_s = _draft_pass(-(-streams // cohorts // drafters))
        cycle_s = draft_s + verify_s if cohorts == 1 else cohorts * max(verify_s, draft_s)
        if cohorts * draft_s <= 0.7 * cycle_s:
            return drafters
    return 7


@pytest.mark.slow
@pytest.mark.parametrize("streams", [8, 16])
def test_the_autoscaler_reaches_what_the_costs_ask_for_and_stays(streams: int) -> None:
    verify_s, long = 0.03, streams_of(streams, max_tokens=200, policy="fixed:3", temperature=0.0)
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
        sizes: list[tuple[float, int]] = []

        async def watch(controller: Controller) -> None:
            while True:
                drafters = controller.sizes()[1]
                if not sizes or sizes[-1][1] != drafters:
                    sizes.append((cell.now, drafters))
                await cell.after(0.5)

        async with supervised(cell, config) as controller:
            watching = asyncio.create_task(watch(controller))
            async with asking(cell, long) as asked:
                await cell.after(90.0)
            assert all(answer.error is None for answer in asked)
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
