"""A drafter of another projection takes over under load: no answer fails or changes, every lane has
a drafter."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import workers
from safetensors.torch import load_file, save_file

from coordinator.workers.membership import Membership
from coordinator.workers.worker import Address, WorkerRole
from deploy.head import free_ports
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.client import AsyncClient
from tests.waiting import until
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

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


class Site:
    """Processes by name; each is stopped at the end."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self.processes: dict[str, Any] = {}

    async def verifier(self, name: str, drafter: Path, bind: str = "") -> None:
        bind = bind or f"127.0.0.1:{free_ports(1)[0]}"
        config = VerifyConfig(
            target=self._target, drafter=str(drafter), measure_cost=False, bind=bind
        )
        self.processes[name] = await verify_process.start(config, name=name)

    async def drafter(self, name: str, drafter: Path) -> None:
        config = DraftConfig(drafter=str(drafter), measure_cost=False)
        self.processes[name] = await draft_process.start(config, name=name)

    async def leaves(self, name: str, grace_s: float = 1.0) -> str:
        """SIGTERM; returns where it was."""
        process = self.processes.pop(name)
        await process.stop(grace_s)
        return str(process.endpoint)

    def addresses(self) -> list[Address]:
        return [
            Address(WorkerRole(name.partition("/")[0]), process.endpoint, 0, name)
            for name, process in self.processes.items()
        ]

    async def close(self) -> None:
        for process in reversed(self.processes.values()):
            await process.stop(0.1)


@pytest_asyncio.fixture
async def site(golden_target: Path) -> AsyncIterator[Site]:
    site = Site(golden_target)
    yield site
    await site.close()


async def test_another_projection_is_rolled_out_under_load(
    site: Site, golden_drafter: Path, newer_drafter: Path
) -> None:
    for name in ("verify/0", "verify/1"):
        await site.verifier(name, golden_drafter)
    await site.drafter("draft/old", golden_drafter)
    async with workers.coordinator(max_handovers=0, policy="fixed:3", warm_up_s=0.0) as coordinator:
        membership = coordinator.membership
        over = asyncio.Event()
        answers: list[tuple[int, tuple[int, ...]]] = []

        async def keep_asking(client: AsyncClient, number: int) -> None:
            while not over.is_set():
                options = {
                    "max_tokens": TOKENS,
                    "temperature": 0.0,
                    "ignore_eos": True,
                    "timeout": 60.0,
                }
                answer = await client.complete(PROMPTS[number], **options)
                answers.append((number, answer.token_ids))

        await membership.announce(site.addresses())
        async with AsyncClient(coordinator.endpoint) as client:
            asking = [
                asyncio.create_task(keep_asking(client, number)) for number in range(len(PROMPTS))
            ]
            await settled(asking, answers, 4)
            await site.drafter("draft/new", newer_drafter)
            await membership.announce(site.addresses())
            (waiting,) = [
                each for each in (await client.status()).processes if each.name == "draft/new"
            ]
            assert waiting.state == "connecting"
            assert "projection" in waiting.detail
            assert "both must load the same drafter" in waiting.detail
            for name in ("verify/0", "verify/1"):
                endpoint = await site.leaves(name)
                await site.verifier(name, newer_drafter, endpoint)
                await until_fed(membership, 2)
                await settled(asking, answers, 4)
            await site.leaves("draft/old")
            await membership.announce(site.addresses())
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
        assert {lane.drafters[0].facts.name for lane in membership.lanes} == {"draft/new"}
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
