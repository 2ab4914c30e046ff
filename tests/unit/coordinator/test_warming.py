"""The first requests of a worker in simulated time: whatever becomes of them, the verifier goes
on."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from coordinator.config import CoordinatorConfig
from coordinator.workers.warming import WarmUpFailed, warm
from dspark.rounds.control import PassReport, Up
from tests.rounds_cell import RoundsCell, Tampered


class Stream(Tampered):
    """One of several to a verifier: what came through it is gone with it, and nothing else is."""

    def close(self, why: str) -> None:
        if not self.closed_because:
            self.closed_because = why
            self.lost(why)

    async def ended(self) -> None:
        pass


class Verifier:
    """As `warming` sees one."""

    def __init__(self, cell: RoundsCell, holds: Callable[[Up], bool]) -> None:
        self.facts, self._cell, self._holds = cell.lane.facts, cell, holds
        self.streams: list[Stream] = []

    def open(self) -> Stream:
        self._cell.add_verifier()
        self.streams.append(Stream(self._cell.ports[-1].port))
        self.streams[-1].hold(self._holds)
        return self.streams[-1]


def _begin(cell: RoundsCell, verifier: Any) -> asyncio.Task[None]:
    work = warm(verifier, cell.drafters[0], config=CoordinatorConfig(), clock=cell.clock)
    return asyncio.get_running_loop().create_task(work)


async def test_a_drafter_whose_first_requests_are_given_up_leaves_nothing_behind(
    cell: RoundsCell,
) -> None:
    verifier = Verifier(cell, lambda each: True)
    before = asyncio.all_tasks()
    warming = _begin(cell, verifier)
    await asyncio.sleep(1.0)
    warming.cancel()
    await asyncio.gather(warming, return_exceptions=True)
    assert asyncio.all_tasks() == before, "nothing of them goes on"
    assert verifier.streams[0].closed_because == "its first requests are over"


@pytest.mark.parametrize("kind", ["prefill", "verdict"])
async def test_what_takes_too_long_fails_the_first_requests(cell: RoundsCell, kind: str) -> None:
    verifier = Verifier(
        cell,
        lambda each: kind == "prefill" or (isinstance(each, PassReport) and each.report.number > 0),
    )
    warming = _begin(cell, verifier)
    with pytest.raises(WarmUpFailed, match=f"^no {kind} "):
        await asyncio.wait_for(warming, 10 * CoordinatorConfig().prefill_deadline_s)
