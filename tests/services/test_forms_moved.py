"""Answers in a form whose verifier is lost, or whose coordinator goes: word for word as if calm."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from dspark.client import AsyncClient, Completion
from tests.services.cell import Cell
from tests.services.http_cell import DRAFTER, TARGET
from tests.services.test_resume import Site
from tests.services.test_verifier_lost import lose

WORDS = {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 6, "maxItems": 6}
TEXTS = Tokenizer.from_file(str(TARGET / "tokenizer.json"))
FORM = {"json_schema": WORDS}
OPTIONS: dict[str, Any] = {
    "max_tokens": 300,
    "constraint": FORM,
    "policy": "fixed:3",
    "timeout": 60.0,
    "n": 2,
}
ALL_PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.2},
    "coupled": {"temperature": 1.0, "seed": 11, "rule": "coupled"},
}


async def moved(
    endpoint: str, move: Callable[[], Awaitable[None]], **params: Any
) -> tuple[list[Any], list[Any]]:
    """Ids of a calm run, and of one that is moved in its middle."""
    async with AsyncClient(endpoint) as client:
        calm = await client.complete([70, 71, 72], **OPTIONS, **params)
        stream = client.generate([70, 71, 72], **OPTIONS, **params, resume_s=20.0)
        events = [await anext(stream), await anext(stream)]
        await move()
        events += [event async for event in stream]
    hurt = Completion.of(events)
    for choice in hurt.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(TEXTS.decode(choice.token_ids)), WORDS)
    return [choice.token_ids for choice in calm.choices], [
        choice.token_ids for choice in hurt.choices
    ]


@pytest_asyncio.fixture
async def cell() -> AsyncIterator[Cell]:
    cell = Cell(TARGET, DRAFTER)
    yield cell
    await cell.close()


@pytest.mark.parametrize("params", ALL_PARAMS)
async def test_a_verifier_is_lost(params: str, cell: Cell) -> None:
    coordinator = await cell.whole(verifiers=2)
    calm, hurt = await moved(coordinator.endpoint, partial(lose, cell), **ALL_PARAMS[params])
    assert hurt == calm
    assert coordinator.metrics.value("handovers_total", reason="lost") >= 1


@pytest.mark.parametrize("params", ALL_PARAMS)
async def test_the_coordinator_goes_and_comes_back(params: str, tmp_path: Path) -> None:
    site = Site(TARGET, DRAFTER, tmp_path / "journal")
    await site.start()

    async def restart() -> None:
        await site.goes()
        await site.comes()

    try:
        calm, hurt = await moved(site.serving.endpoint, restart, **ALL_PARAMS[params])
        assert hurt == calm
        assert site.serving.metrics.value("prefills_total", reason="resumed") >= 1
    finally:
        await site.close()
