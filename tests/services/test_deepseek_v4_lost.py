"""A DeepSeek-V4 target and the drafter inside its checkpoint, whose processes are lost while they
answer.

The answers go on elsewhere, and are those of the library alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from coordinator.workers.worker import Address, WorkerRole
from dspark.client import AsyncClient
from dspark.model.checkpoint import load_target
from tests.architectures import deepseek_v4
from tests.architectures.serving import prompt
from tests.services.cell import Cell
from tests.services.test_verifier_lost import lose
from tests.waiting import until

pytestmark = pytest.mark.slow

PROMPTS, ANSWER = 40, 24


@pytest_asyncio.fixture
async def cell(tmp_path: Path) -> AsyncIterator[Cell]:
    deepseek_v4.write(tmp_path / "model")
    async with Cell(tmp_path / "model", tmp_path / "model") as cell:
        yield cell


async def test_forty_answers_survive_a_lost_verifier_and_a_lost_drafter(
    cell: Cell, tmp_path: Path
) -> None:
    prompts = [prompt(3 + 2 * number, number) for number in range(PROMPTS)]
    model = load_target(tmp_path / "model").model
    wanted = []
    for ids in prompts:
        out = model.generate(torch.tensor([ids]), max_new_tokens=ANSWER, do_sample=False)
        wanted.append(out[0, len(ids) :].tolist())
    coordinator = await cell.whole(verifiers=2)
    metrics = coordinator.metrics
    options = {
        "max_tokens": ANSWER,
        "temperature": 0.0,
        "ignore_eos": True,
        "policy": "fixed:5",
        "timeout": 300.0,
    }
    async with AsyncClient(coordinator.endpoint) as client:
        asked = [asyncio.ensure_future(client.complete(ids, **options)) for ids in prompts]
        await until(lambda: metrics.value("spec_decode_num_accepted_tokens_total") >= 1, 120.0)
        await lose(cell)
        await until(
            lambda: metrics.value("generation_tokens_total") >= PROMPTS * ANSWER // 3, 240.0
        )
        second = await cell.drafter()
        await cell.drafters[0].stop(0.0)
        there = [
            Address(WorkerRole.VERIFY, each.endpoint, 0, f"verify/{n}")
            for n, each in enumerate(cell.verifiers)
        ]
        coordinator.cell.membership.announce(
            [*there, Address(WorkerRole.DRAFT, second.endpoint, 0, "draft/9")]
        )
        answers = [list(completion.token_ids) for completion in await asyncio.gather(*asked)]
    assert answers == wanted
