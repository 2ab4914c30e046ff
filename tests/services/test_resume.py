"""The coordinator goes and comes back at its address: clients that ask for it get the rest, and
nobody else is hurt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deploy.head import free_ports
from dspark.client import AsyncClient, Chunk
from tests.services.cell import Cell
from tests.services.http_cell import DRAFTER, TARGET
from tests.services.test_verifier_lost import IN_A_FORM, check_form

TOKENS = 60
OPTIONS: dict[str, Any] = {
    "max_tokens": TOKENS,
    "ignore_eos": True,
    "policy": "fixed:3",
    "timeout": 60.0,
}


class Site(Cell):
    """Real workers, and a coordinator with a journal that can go and come back."""

    def __init__(self, target: Path, drafter: Path, journal: Path) -> None:
        super().__init__(target, drafter)
        self._journal, self._endpoint = str(journal), f"127.0.0.1:{free_ports(1)[0]}"

    async def start(self) -> None:
        await self.verifier()
        await self.drafter()
        await self.comes()

    async def comes(self) -> None:
        await self.coordinator(bind=self._endpoint, journal=self._journal)
        self._endpoint = self.serving.endpoint

    async def goes(self) -> None:
        """Running streams end with UNAVAILABLE, as when it is killed; see row 21 of
        docs/reliability.md for that."""
        coordinator, self.serving = self.serving, None
        await coordinator.stop(0.0)


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Of the pair that has texts."""
    async with Site(TARGET, DRAFTER, tmp_path / "journal") as site:
        await site.start()
        yield site


async def read(
    site: Site, client: AsyncClient, *, go_at: int, **options: Any
) -> tuple[dict[int, list[int]], int]:
    """Ids by answer, and how often the rest was asked for; the coordinator goes and comes back
    meanwhile."""
    held: dict[int, list[int]] = {}
    logprobs = 0
    stream = client.generate([5, 9, 17], **{**OPTIONS, **options})
    async for event in stream:
        if isinstance(event, Chunk):
            mine = held.setdefault(event.index, [])
            assert event.offset == len(mine), "neither twice nor skipped"
            mine += event.token_ids
            logprobs += len(event.logprobs)
        if go_at and site.serving is not None and sum(map(len, held.values())) >= go_at:
            go_at = 0
            await site.goes()
            await site.comes()
    if "logprobs" in options:
        assert logprobs == sum(map(len, held.values()))
    return held, stream.resumed


ALL_PARAMS: list[dict[str, Any]] = [
    {
        "temperature": 0.0,
        "logprobs": 2,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "min_tokens": 4,
    },
    {"temperature": 0.9, "seed": 11, "rule": "coupled", "n": 3, "frequency_penalty": 0.3},
    *IN_A_FORM.values(),
]


@pytest.mark.parametrize("params", ALL_PARAMS, ids=["greedy", "coupled", *IN_A_FORM])
async def test_the_ids_are_those_of_a_calm_run(site: Site, params: dict[str, Any]) -> None:
    async with AsyncClient(site.serving.endpoint) as client:
        calm, _ = await read(site, client, go_at=0, **params)
        hurt, resumed = await read(site, client, go_at=20, resume_s=20.0, **params)
        assert hurt == calm
        assert resumed >= 1
        assert site.serving.metrics.value("prefills_total", reason="resumed") >= 1
    for token_ids in hurt.values() if "constraint" in params else ():
        check_form(token_ids)


async def test_through_a_front_end_it_is_the_same(site: Site) -> None:
    client = site.client(await site.frontend())
    params: dict[str, Any] = {"temperature": 0.0, "n": 2, "logprobs": 2}
    calm, _ = await read(site, client, go_at=0, **params)
    hurt, resumed = await read(site, client, go_at=20, resume_s=20.0, **params)
    assert hurt == calm
    assert resumed >= 1
