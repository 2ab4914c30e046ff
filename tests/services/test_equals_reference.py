"""Invariant 7: the distributed system equals the one-page loop.

Real coordinator, verifier and drafter talk over loopback. What the verifier was asked to judge is recorded; the
recorded (anchor, prefix) choices, replayed by the reference loop over plain forwards of the target, must lead to the
tokens the clients saw. At temperature 0 they must be those of plain greedy decoding.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from faults import oracle

from dspark.client import AsyncClient
from dspark.decoding.reference import RecordedRound, replay
from dspark.types import Rule, SamplingParams
from tests.services.cell import Cell, Recorded

POLICIES = ("adaptive", "fixed:3", "threshold:0.4", "off")


@dataclass
class Running:
    """A running cell and the rounds its verifier judged, by (seed, choice) of the request."""

    endpoint: str
    rounds: dict[tuple[int, int], list[RecordedRound]]


@pytest_asyncio.fixture
async def running(cell: Cell) -> Running:
    coordinator = await cell.whole()
    return Running(coordinator.endpoint, Recorded(cell.verifiers[0].engine).rounds)


async def _answer(client: AsyncClient, prompt: list[int], delay_s: float, **options: Any) -> list[int]:
    await asyncio.sleep(delay_s)
    completion = await client.complete(prompt, timeout=60.0, ignore_eos=True, **options)
    return list(completion.token_ids)


def _prompts(count: int) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(2, 120) for _ in range(rng.randrange(4, 40))] for _ in range(count)]


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"temperature": 1.0}, id="sampled"),
        pytest.param({"temperature": 0.7, "top_k": 20, "top_p": 0.9}, id="truncated"),
    ],
)
async def test_recorded_choices_replayed_by_the_reference_loop_give_the_same_tokens(
    running: Running, golden_target: Path, params: dict[str, Any], rule: Rule
) -> None:
    params = {**params, "rule": rule.name.lower()}
    prompts, target = _prompts(8), partial(oracle.logits, target=golden_target)
    client = AsyncClient(running.endpoint)
    answers = await asyncio.gather(
        *(
            _answer(
                client, prompt, 0.01 * index, max_tokens=24, seed=1000 + index, policy=POLICIES[index % 4], **params
            )
            for index, prompt in enumerate(prompts)
        )
    )
    await client.close()
    assert sum(len(rounds) for rounds in running.rounds.values()) > 0
    assert any(made.accepted for rounds in running.rounds.values() for made in rounds)
    for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        # The wire carries float32 request fields.
        as_sent = {key: float(torch.tensor(v).item()) if isinstance(v, float) else v for key, v in params.items()}
        as_sent["rule"] = rule
        key = SamplingParams(**as_sent, seed=1000 + index)
        rounds = running.rounds[1000 + index, 0]
        assert tuple(answer) == replay(prompt, target, rounds, key, max_tokens=24, epoch=rounds[0].epoch)


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}], ids=str)
async def test_seeded_answers_are_those_of_plain_decoding_whatever_the_policy(
    running: Running, params: dict[str, Any]
) -> None:
    prompts = _prompts(6)
    client = AsyncClient(running.endpoint)
    answers = [
        await asyncio.gather(
            *(
                _answer(client, prompt, 0.01 * index, max_tokens=40, seed=index, policy=policy, **params)
                for index, prompt in enumerate(prompts)
            )
        )
        for policy in POLICIES
    ]
    await client.close()
    assert all(each == answers[-1] for each in answers)
    assert any(made.accepted for rounds in running.rounds.values() for made in rounds)


async def test_rows_in_float8_change_no_greedy_answer_and_still_serve_the_drafter(
    cell: Cell, golden_target: Path
) -> None:
    prompt = _prompts(1)[0]
    await cell.verifier(feature_dtype="float8_e4m3")
    await cell.drafter()
    client = cell.client(await cell.coordinator())
    completion = await client.complete(
        prompt, timeout=60.0, ignore_eos=True, max_tokens=40, temperature=0.0, policy="fixed:7"
    )
    assert [list(completion.token_ids)] == oracle.plain_greedy(golden_target, [prompt], 40)
    assert completion.end.speculation.draft_tokens > 0


async def test_the_rule_in_force_is_reported(running: Running) -> None:
    client = AsyncClient(running.endpoint)
    assert (await client.model_info()).rule == "block"
    for asked, reported in (
        ({}, "block"),
        ({"seed": 4}, "coupled"),
        ({"seed": 4, "rule": "token"}, "token"),
        ({"rule": "coupled"}, "coupled"),
    ):
        completion = await client.complete([5, 6, 7], timeout=60.0, max_tokens=6, ignore_eos=True, **asked)
        assert completion.end.speculation.rule == reported
    await client.close()
