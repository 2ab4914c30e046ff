"""A verifier's connections break in the middle of answers of every kind: they go on elsewhere, word
for word."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from dspark.client import AsyncClient, Completion
from tests.services.cell import Cell
from tests.services.http_cell import DRAFTER, TARGET

OPTIONS: dict[str, Any] = {
    "max_tokens": 60,
    "ignore_eos": True,
    "policy": "fixed:3",
    "timeout": 60.0,
}
WORDS = {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 6, "maxItems": 6}
FORM: dict[str, Any] = {
    "constraint": {"json_schema": WORDS},
    "n": 2,
    "max_tokens": 300,
    "ignore_eos": False,
}
IN_A_FORM: dict[str, dict[str, Any]] = {
    "in a form": {**FORM, "temperature": 0.0, "repetition_penalty": 1.2},
    "in a form, coupled": {**FORM, "temperature": 1.0, "seed": 11, "rule": "coupled"},
}
ALL_PARAMS: dict[str, dict[str, Any]] = {
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "penalties": {
        "temperature": 0.0,
        "presence_penalty": 0.6,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.2,
    },
    "least length": {
        "temperature": 0.0,
        "min_tokens": 50,
        "ignore_eos": False,
        "logit_bias": {7: 3.0},
    },
    "several": {"temperature": 0.8, "seed": 5, "rule": "coupled", "n": 3, "top_k": 20},
    **IN_A_FORM,
}


def check_form(token_ids: Sequence[int]) -> None:
    text = Tokenizer.from_file(str(TARGET / "tokenizer.json")).decode(token_ids)
    jsonschema.validate(json.loads(text), WORDS)


@pytest_asyncio.fixture
async def cell() -> AsyncIterator[Cell]:
    """Of the pair that has texts."""
    async with Cell(TARGET, DRAFTER) as cell:
        yield cell


async def lose(cell: Cell) -> None:
    """Breaks the connections of the verifier that holds most, as when it is killed."""
    lost = max(cell.verifiers, key=lambda each: each.engine.held.sequences)
    await lost.shell.server._server.stop(None)


@pytest.mark.parametrize("name", ALL_PARAMS)
async def test_answers_go_on_word_for_word(cell: Cell, name: str) -> None:
    coordinator = await cell.whole(verifiers=2)
    options = {**OPTIONS, **ALL_PARAMS[name]}
    async with AsyncClient(coordinator.endpoint) as client:
        calm = await client.complete([5, 9, 17], **options)
        stream = client.generate([5, 9, 17], **options)
        events = [await anext(stream), await anext(stream)]
        await lose(cell)
        events += [event async for event in stream]
    hurt = Completion.of(events)
    for after, before in zip(hurt.choices, calm.choices, strict=True):
        assert (after.token_ids, after.finish_reason) == (before.token_ids, before.finish_reason)
        for told, other in zip(after.logprobs, before.logprobs, strict=True):
            assert [token for token, _ in told.top] == [token for token, _ in other.top]
            assert told.logprob == pytest.approx(other.logprob, abs=1e-4)
        if "constraint" in options:
            check_form(after.token_ids)
    assert coordinator.metrics.value("handovers_total", reason="lost") >= 1
