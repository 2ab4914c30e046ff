"""Sampling fields, log-probabilities and several answers over real gRPC: real coordinator, verifier
and drafter.

What is claimed is computed anew beside it, by a plain forward of the target. Laws are for
`test_equals_reference`.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.client import AsyncClient, Chunk, Completion
from tests.faults import oracle

PROMPT = [7, 19, 3, 50, 7, 21]
VOCAB = 128


async def ask(client: AsyncClient, **options: Any) -> Completion:
    given = {"ignore_eos": True, "max_tokens": 24, **options}
    return await client.complete(PROMPT, timeout=60.0, **given)


async def test_log_probabilities_are_those_of_a_forward_of_the_target(
    client: AsyncClient, golden_target: Path
) -> None:
    # Whatever shapes the choice, what is told is the model's own distribution.
    answer = await ask(
        client, temperature=0.8, top_k=5, repetition_penalty=1.3, logprobs=4, policy="fixed:5"
    )
    (choice,) = answer.choices
    assert len(choice.logprobs) == len(choice.token_ids) == 24
    tokens = [*PROMPT, *choice.token_ids]
    logs = torch.log_softmax(oracle.logits(tokens, 25, golden_target)[:-1], dim=-1)
    for row, token, told in zip(logs, choice.token_ids, choice.logprobs, strict=True):
        assert told.logprob == pytest.approx(float(row[token]), abs=1e-4)
        # Two logits may lie closer than a packed pass rounds, so the ids are checked by their
        # values.
        ids = [token for token, _ in told.top]
        assert len(set(ids)) == 4
        for wanted in (row[ids], row.topk(4).values):
            assert [value for _, value in told.top] == pytest.approx(wanted.tolist(), abs=1e-4)


@pytest.mark.parametrize("policy", ["off", "fixed:7"])
async def test_every_id_of_the_vocabulary_may_have_a_bias_and_many_may_end_an_answer(
    client: AsyncClient, policy: str
) -> None:
    forced: Any = {"temperature": 0.0, "policy": policy, "max_tokens": 12, "min_tokens": 6}
    everything = {token: -50.0 + (100.0 if token == 77 else 0.0) for token in range(VOCAB)}
    assert (await ask(client, logit_bias=everything, **forced)).token_ids == (77,) * 12
    half = dict.fromkeys(range(30), -100.0)
    answer = await ask(client, logit_bias=half, stop_token_ids=list(range(30, 70)), **forced)
    assert not set(answer.token_ids[:6]) & set(range(70))
    answer = await ask(client, stop_token_ids=list(range(64)), **forced)
    assert not set(answer.token_ids[:6]) & set(range(64))


@pytest.mark.parametrize("policy", ["off", "fixed:7"])
async def test_nothing_ends_an_answer_before_its_least_length(
    client: AsyncClient, policy: str
) -> None:
    forced: dict[str, Any] = {"logit_bias": {77: 100.0}, "stop_token_ids": [77], "policy": policy}
    at_once = await ask(client, **forced)
    assert (at_once.token_ids, at_once.end.matched_stop) == ((77,), 77)
    for least in (1, 6, 23, 24):
        answer = await ask(client, min_tokens=least, **forced)
        ended = answer.end.finish_reason
        assert 77 not in answer.token_ids[:least]
        assert (len(answer.token_ids), ended) == (
            (least + 1, "stop") if least < 24 else (24, "length")
        )


async def test_several_answers_share_a_prompt_and_nothing_else(client: AsyncClient) -> None:
    asked = client.generate(PROMPT, n=3, seed=11, max_tokens=20, ignore_eos=True)
    events = [event async for event in asked]
    whole, end = Completion.of(events), events[-1]
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.token_ids for choice in whole.choices}) == 3, "each has draws of its own"
    for choice in whole.choices:
        its = [each for each in events if isinstance(each, Chunk) and each.index == choice.index]
        sizes = [len(chunk.token_ids) for chunk in its]
        assert [chunk.offset for chunk in its] == [sum(sizes[:k]) for k in range(len(its))]
        assert (len(choice.token_ids), choice.finish_reason) == (20, "length")
    assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (len(PROMPT), 60)
    assert [one.completion_tokens for one in end.choices] == [20, 20, 20]
    spec = end.speculation
    assert sum(spec.acceptance_histogram) == spec.rounds
    accepted = sum(i * count for i, count in enumerate(spec.acceptance_histogram))
    assert accepted == spec.accepted_tokens
    # A seed asks for the coupled rule, under which an answer depends on nothing but its own key.
    alone = await ask(client, seed=11, max_tokens=20)
    assert alone.token_ids == whole.choices[0].token_ids
    again = await ask(client, seed=11, max_tokens=20, n=3, policy="fixed:3")
    assert [c.token_ids for c in again.choices] == [c.token_ids for c in whole.choices]


async def test_each_of_several_answers_ends_on_its_own(client: AsyncClient) -> None:
    biased: Any = {"logit_bias": {77: 9.0, 78: 9.0}, "stop_token_ids": [77], "min_tokens": 1}
    answer = await ask(client, n=4, seed=2, max_tokens=30, **biased)
    for choice, end in zip(answer.choices, answer.end.choices, strict=True):
        assert end.completion_tokens == len(choice.token_ids)
        stopped = 77 in choice.token_ids
        assert (choice.finish_reason, choice.matched_stop) == (
            ("stop", 77) if stopped else ("length", None)
        )
        assert 77 not in choice.token_ids[:-1]
    first, end = answer.choices[0], answer.end
    assert (end.finish_reason, end.matched_stop) == (first.finish_reason, first.matched_stop)
    assert (answer.text, answer.token_ids) == (first.text, first.token_ids)
    assert len({len(choice.token_ids) for choice in answer.choices}) > 1
