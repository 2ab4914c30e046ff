"""A drafter that lies, among real services: found by what verdicts tell, and cut off where it could do harm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from torch import Tensor

from coordinator.process import CoordinatorProcess
from dspark.client import AsyncClient, Completion
from dspark.decoding import drafting
from tests.services.cell import Cell


@pytest_asyncio.fixture
async def cell(golden_target: Path, golden_drafter: Path) -> AsyncIterator[CoordinatorProcess]:
    made = Cell(golden_target, golden_drafter)
    yield await made.whole(policy="fixed:7", metrics_port=None)
    await made.close()


async def ask(cell: CoordinatorProcess, count: int, **options: Any) -> list[Completion]:
    given = {"max_tokens": 40, "temperature": 1.0, "ignore_eos": True, **options}
    async with AsyncClient(cell.endpoint) as client:
        return await asyncio.gather(*(client.complete([seed + 2, 9, 4], **given) for seed in range(count)))


def told(cell: CoordinatorProcess) -> tuple[float, float]:
    """(draws the monitor has seen, alarms)."""
    samples = [sample for metric in cell.metrics.registry.collect() for sample in metric.samples]
    sums = {
        name: sum(each.value for each in samples if each.name == f"dspark_{name}")
        for name in ("monitor_draws_total", "monitor_alarms_total")
    }
    return sums["monitor_draws_total"], sums["monitor_alarms_total"]


async def test_an_honest_drafter_is_watched_and_trusted(cell: CoordinatorProcess) -> None:
    for rule in ("block", "token"):
        await ask(cell, 12, rule=rule)
    draws, alarms = told(cell)
    assert draws > 1000
    assert alarms == 0


async def test_a_lying_drafter_is_found_and_does_no_harm_from_then_on(
    cell: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drafting.draw_sparse

    def lying(ids: Tensor, probs: Tensor, u: Tensor) -> Tensor:
        """Draws from another distribution than it says."""
        return real(ids, (probs.double() ** 3).float(), u)

    monkeypatch.setattr(drafting, "draw_sparse", lying)
    for _ in range(10):
        await ask(cell, 12, rule="block")
        if told(cell)[1]:
            break
    assert told(cell)[1] == 1
    assert told(cell)[0] < 20_000
    empty = cell.metrics.value("empty_blocks_total", reason="distrusted")
    refused = await ask(cell, 2, rule="token")
    assert sum(each.end.speculation.draft_tokens for each in refused) == 0
    assert cell.metrics.value("empty_blocks_total", reason="distrusted") > empty
    # By rules that no draft can hurt it still drafts, and those who name none get one.
    for options in ({"rule": "coupled"}, {"temperature": 0.0, "rule": "block"}, {}):
        assert all(each.end.speculation.draft_tokens for each in await ask(cell, 2, **options)), options


async def test_draws_that_a_client_can_repeat_are_not_counted(cell: CoordinatorProcess) -> None:
    await ask(cell, 4, rule="block", seed=5)
    assert told(cell)[0] == 0
    await ask(cell, 4, rule="block")
    assert told(cell)[0] > 0
