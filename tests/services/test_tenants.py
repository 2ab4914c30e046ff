"""Two tenants of one cell: what one has asked spares the other nothing, and names of one are no
names of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark.client import AsyncClient
from tests.keys import key_files
from tests.services.cell import Cell

TOKENS = {"acme": "token-of-the-tenant-acme", "globex": "token-of-the-tenant-globex"}
PROMPT = [number % 100 + 16 for number in range(100)]


@pytest.mark.parametrize("attention", ["auto", "stateful"])
async def test_tenants_share_neither_prefixes_nor_names(
    tmp_path: Path, golden_target: Path, attention: str
) -> None:
    keys = key_files(tmp_path, TOKENS)
    async with Cell(golden_target) as cell:
        await cell.verifier(attention=attention, **keys["verify"])
        coordinator = await cell.coordinator(**keys["coordinator"])
        acme, globex = (AsyncClient(coordinator.endpoint, token=token) for token in TOKENS.values())

        async def cached(client: AsyncClient, salt: str = "") -> int:
            answer = await client.complete(
                PROMPT, max_tokens=2, temperature=0.0, cache_salt=salt, timeout=60
            )
            return answer.end.usage.cached_tokens

        async with acme, globex:
            assert await cached(acme, "mine") == 0
            assert await cached(acme, "mine") > 0, "its own second question is spared"
            for salt in ("mine", "acme/mine", "/acme/mine", ""):
                assert await cached(globex, salt) == 0
            async with acme.generate(PROMPT, max_tokens=64, ignore_eos=True, timeout=60) as stream:
                await anext(stream)
                for name in (stream.request_id, f"acme/{stream.request_id}"):
                    assert await globex.abort([name]) == ()
                assert await acme.abort([stream.request_id]) == (stream.request_id,)
