"""A drafter that lies, among real services: found by verdicts, and cut off where it could harm."""

import asyncio
from typing import Any

import pytest
from torch import Tensor

from coordinator.cells.local_cell import LocalCell
from coordinator.frontend.front_end import ClientsProcess
from dspark.client import AsyncClient, Completion
from dspark.decoding import drafting
from tests.services.cell import Cell


@pytest.fixture
async def coordinator(cell: Cell) -> ClientsProcess[LocalCell]:
    return await cell.whole(policy="fixed:7")


async def ask(
    coordinator: ClientsProcess[LocalCell], count: int, **options: Any
) -> list[Completion]:
    given = {"max_tokens": 40, "temperature": 1.0, "ignore_eos": True, **options}
    async with AsyncClient(coordinator.endpoint) as client:
        return await asyncio.gather(
            *(client.complete([seed + 2, 9, 4], **given) for seed in range(count))
        )


def told(coordinator: ClientsProcess[LocalCell]) -> tuple[float, float]:
    """(draws the monitor has seen, alarms)."""
    told = [each for metric in coordinator.metrics.registry.collect() for each in metric.samples]
    draws, alarms = (
        sum(each.value for each in told if each.name == f"dspark_monitor_{name}_total")
        for name in ("draws", "alarms")
    )
    return draws, alarms


async def test_an_honest_drafter_is_watched_where_no_client_can_repeat_its_draws_and_trusted(
    coordinator: ClientsProcess[LocalCell],
) -> None:
    await ask(coordinator, 4, rule="block", seed=5)
    assert told(coordinator)[0] == 0
    for rule in ("block", "token"):
        await ask(coordinator, 12, rule=rule)
    draws, alarms = told(coordinator)
    assert draws > 1000
    assert alarms == 0


async def test_a_lying_drafter_is_found_and_does_no_harm_from_then_on(
    coordinator: ClientsProcess[LocalCell], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = drafting.drawn

    def lying(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Draws from another distribution than it says."""
        return real(probs**3, u)

    monkeypatch.setattr(drafting, "drawn", lying)
    for _ in range(10):
        await ask(coordinator, 12, rule="block")
        if told(coordinator)[1]:
            break
    assert told(coordinator)[1] == 1
    assert told(coordinator)[0] < 20_000
    empty = coordinator.metrics.value("empty_blocks_total", reason="distrusted")
    refused = await ask(coordinator, 2, rule="token")
    assert sum(each.end.speculation.draft_tokens for each in refused) == 0
    assert coordinator.metrics.value("empty_blocks_total", reason="distrusted") > empty
    # By rules that no draft can hurt it still drafts, and those who name none get one.
    for options in ({"rule": "coupled"}, {"temperature": 0.0, "rule": "block"}, {}):
        assert all(
            each.end.speculation.draft_tokens for each in await ask(coordinator, 2, **options)
        ), options
