"""A drafter of another projection takes over under load: no answer fails or changes, every lane has
a drafter."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordinator.workers.membership import Membership
from dspark.client import AsyncClient
from tests.services.cell import Cell
from tests.waiting import until

PROMPTS = ([3, 17, 42, 9], [8, 5], list(range(2, 20)), [64, 64, 64])
TOKENS = 48


@pytest.fixture
def newer_drafter(golden_drafter: Path, tmp_path: Path) -> Path:
    """The same drafter, trained on: its context projection is another one."""
    folder = tmp_path / "newer"
    shutil.copytree(golden_drafter, folder)
    weights = load_file(folder / "model.safetensors")
    weights["fc.weight"] = weights["fc.weight"] + 0.01 * torch.ones_like(weights["fc.weight"])
    save_file(weights, folder / "model.safetensors")
    return folder


async def test_another_projection_is_rolled_out_under_load(cell: Cell, newer_drafter: Path) -> None:
    for _ in range(2):
        await cell.verifier()
    await cell.drafter()
    coordinator = await cell.coordinator((), (), max_handovers=0, policy="fixed:3")
    membership = coordinator.cell.membership
    over = asyncio.Event()
    answers: list[tuple[int, tuple[int, ...]]] = []

    async def keep_asking(client: AsyncClient, number: int) -> None:
        while not over.is_set():
            answer = await client.complete(
                PROMPTS[number], max_tokens=TOKENS, temperature=0.0, ignore_eos=True, timeout=60.0
            )
            answers.append((number, answer.token_ids))

    membership.announce(cell.addresses())
    await membership.settled()
    async with AsyncClient(coordinator.endpoint) as client:
        asking = [
            asyncio.create_task(keep_asking(client, number)) for number in range(len(PROMPTS))
        ]
        await settled(asking, answers, 4)
        await cell.drafter(newer_drafter)
        membership.announce(cell.addresses())
        await membership.settled()
        (waiting,) = [each for each in (await client.status()).processes if each.name == "draft/1"]
        assert waiting.state == "connecting"
        assert "projection" in waiting.detail
        assert "both must load the same drafter" in waiting.detail
        for place, leaves in enumerate(cell.verifiers[:]):
            await leaves.stop(1.0)
            await cell.verifier(drafter=str(newer_drafter), bind=leaves.endpoint)
            cell.verifiers[place] = cell.verifiers.pop()
            await until_fed(membership, 2)
            await settled(asking, answers, 4)
        await cell.drafters[0].stop(1.0)
        membership.announce([each for each in cell.addresses() if each.name != "draft/0"])
        drafts = coordinator.metrics.value("spec_decode_num_drafts_total")
        await settled(asking, answers, 4)
        over.set()
        await asyncio.gather(*asking)
    assert coordinator.metrics.value("spec_decode_num_drafts_total") > drafts, (
        "the newer one drafts"
    )
    assert all(
        len({tokens for number, tokens in answers if number == each}) == 1
        for each in range(len(PROMPTS))
    )
    assert {lane.drafters[0].facts.name for lane in membership.lanes} == {"draft/1"}
    assert coordinator.metrics.value("worker_losses_total", pool="verify") == 0, (
        "they said that they would leave"
    )


async def settled(asking: list[asyncio.Task[None]], answers: list[Any], more: int) -> None:
    """Until so many more answers are complete; a failed one ends the test."""
    wanted = len(answers) + more
    while len(answers) < wanted:
        done, _ = await asyncio.wait(asking, timeout=0.02, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()


async def until_fed(membership: Membership, lanes: int) -> None:
    """Until so many lanes are there, each with a drafter."""
    await until(
        lambda: len(membership.lanes) == lanes and all(lane.drafters for lane in membership.lanes)
    )
