"""A verifier's connections break in the middle of answers of every kind: they go on elsewhere, word for word."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coordinator import process as coordinator_process
from coordinator.config import CoordinatorConfig
from draft_service import process as draft_process
from draft_service.config import DraftConfig
from dspark.client import AsyncClient, Completion
from dspark.client.errors import Unavailable
from verify_service import process as verify_process
from verify_service.config import VerifyConfig

pytestmark = pytest.mark.services

OPTIONS: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "policy": "fixed:3", "timeout": 60.0}
LAWS: dict[str, dict[str, Any]] = {
    "logprobs": {"temperature": 0.0, "logprobs": 3},
    "penalties": {"temperature": 0.0, "presence_penalty": 0.6, "frequency_penalty": 0.2, "repetition_penalty": 1.2},
    "least length": {"temperature": 0.0, "min_tokens": 50, "ignore_eos": False, "logit_bias": {7: 3.0}},
    "several": {"temperature": 0.8, "seed": 5, "rule": "coupled", "n": 3, "top_k": 20},
}


class Pool:
    """Two verifiers, a drafter and a coordinator."""

    def __init__(self, target: Path, drafter: Path) -> None:
        self._settings = {"target": str(target), "drafter": str(drafter), "measure_cost": False}
        self._drafter = str(drafter)
        self.verifiers: list[Any] = []
        self._others: list[Any] = []
        self.coordinator: Any = None

    async def start(self, verifiers: int, **settings: Any) -> None:
        for index in range(verifiers):
            self.verifiers.append(await verify_process.start(VerifyConfig(**self._settings), name=f"verify/{index}"))
        drafter = await draft_process.start(DraftConfig(drafter=self._drafter, measure_cost=False))
        self._others.append(drafter)
        self.coordinator = await coordinator_process.start(
            CoordinatorConfig(
                verify=tuple(each.endpoint for each in self.verifiers),
                draft=(drafter.endpoint,),
                warm_up_s=0.0,
                **settings,
            )
        )

    async def lose(self) -> None:
        """Breaks the connections of the verifier that holds most, as when it is killed."""
        lost = max(self.verifiers, key=lambda each: each.engine.held.sequences)
        await lost.shell.server._server.stop(None)

    async def close(self) -> None:
        for process in (self.coordinator, *self._others, *self.verifiers):
            await process.stop(0.0)


@pytest_asyncio.fixture
async def pool(golden_target: Path, golden_drafter: Path) -> AsyncIterator[Pool]:
    pool = Pool(golden_target, golden_drafter)
    yield pool
    await pool.close()


@pytest.mark.parametrize("name", LAWS)
async def test_answers_go_on_word_for_word(pool: Pool, name: str) -> None:
    await pool.start(2)
    options = {**OPTIONS, **LAWS[name]}
    async with AsyncClient(pool.coordinator.endpoint) as client:
        calm = await client.complete([5, 9, 17], **options)
        stream = client.generate([5, 9, 17], **options)
        events = [await anext(stream), await anext(stream)]
        await pool.lose()
        events += [event async for event in stream]
    hurt = Completion.of(events)
    assert [choice.token_ids for choice in hurt.choices] == [choice.token_ids for choice in calm.choices]
    assert [choice.finish_reason for choice in hurt.choices] == [choice.finish_reason for choice in calm.choices]
    for after, before in zip(hurt.choices, calm.choices, strict=True):
        for told, other in zip(after.logprobs, before.logprobs, strict=True):
            assert [token for token, _ in told.top] == [token for token, _ in other.top]
            assert told.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert pool.coordinator.metrics.value("handovers_total", reason="lost") >= 1


async def test_the_last_one_lost_ends_answers_with_their_offset_after_a_bounded_wait(pool: Pool) -> None:
    await pool.start(1, verifier_wait_s=0.3)
    async with AsyncClient(pool.coordinator.endpoint) as client:
        stream = client.generate([5, 9, 17], temperature=0.0, **OPTIONS)
        held = len((await anext(stream)).token_ids)
        await pool.lose()

        async def to_the_end() -> None:
            nonlocal held
            async for event in stream:
                held += len(event.token_ids)

        with pytest.raises(Unavailable) as caught:
            await asyncio.wait_for(to_the_end(), 10.0)
        assert f"the answer stands at offset {held}" in str(caught.value)
