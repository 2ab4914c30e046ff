"""A verifier's connections break in the middle of answers of every kind: they go on elsewhere, word
for word."""

from __future__ import annotations

from typing import Any

import pytest

from dspark.client import AsyncClient, Completion
from tests.services.cell import Cell

OPTIONS: dict[str, Any] = {
    "max_tokens": 60,
    "ignore_eos": True,
    "policy": "fixed:3",
    "timeout": 60.0,
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
}


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
    assert coordinator.metrics.value("handovers_total", reason="lost") >= 1
