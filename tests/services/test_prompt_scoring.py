"""Log-probabilities of prompts over gRPC and HTTP, against the library's forward of the target."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.http import chat, completions, reply
from coordinator.http.logprobs import echo_logprobs, prompt_logprobs
from coordinator.reception.tokenizer import Tokenizer
from dspark.client import (
    AsyncClient,
    Chunk,
    Client,
    Completion,
    Finished,
    InvalidRequest,
    PromptLogprobs,
    Usage,
)
from dspark.types import MAX_PROMPT_LOGPROBS
from tests.faults import oracle
from tests.services.cell import Cell
from tests.services.http_cell import TARGET, HttpCell, of_module
from tests.waiting import wait_until

VOCAB = 128
# several passes, and all but the context
LONG = [(7 * at * at + 3 * at + 5) % VOCAB for at in range(450)]


def logs_of(target: Path, ids: Sequence[int]) -> torch.Tensor:
    """[n - 1, V] of the tokens after the first."""
    return torch.log_softmax(oracle.logits(ids, len(ids), target)[:-1], dim=-1)


def check(told: PromptLogprobs | None, logs: torch.Tensor, ids: Sequence[int], top: int) -> None:
    assert told is not None
    assert (told.tokens[0], told.ranks[0]) == (None, None)
    assert len(told.tokens) == len(told.ranks) == len(ids)
    for row, token, one, rank in zip(logs, ids[1:], told.tokens[1:], told.ranks[1:], strict=True):
        assert one is not None
        assert rank is not None
        assert one.logprob == pytest.approx(float(row[token]), abs=1e-4)
        # Two logits may lie closer than a packed pass rounds, so places and ids are checked by
        # their values.
        assert float(row.sort(descending=True).values[rank - 1]) == pytest.approx(
            one.logprob, abs=1e-4
        )
        values = [value for _, value in one.top]
        assert values == pytest.approx(row.topk(top).values.tolist() if top else [], abs=1e-4)
        assert values == pytest.approx(row[[each for each, _ in one.top]].tolist(), abs=1e-4)


@pytest.fixture
async def fronted(cell: Cell, client: AsyncClient) -> AsyncClient:
    """Through a front end in a process of its own."""
    return cell.client(await cell.frontend())


async def test_every_token_of_a_long_prompt_is_scored_as_the_library_does(
    cell: Cell, client: AsyncClient, fronted: AsyncClient, golden_target: Path
) -> None:
    logs = logs_of(golden_target, LONG)
    for each in (client, fronted):
        for _ in range(2):  # what the first left in the prefix cache is not a score
            answer = await each.complete(LONG, max_tokens=0, prompt_logprobs=3, timeout=120.0)
            check(answer.prompt_logprobs, logs, LONG, 3)
            assert (answer.token_ids, answer.end.finish_reason) == ((), "length")
            assert answer.end.usage == Usage(len(LONG), 0, 0)
    assert cell.verifiers[0].engine.held.sequences == 0


async def test_scores_come_first_and_once_and_the_answer_as_without_them(
    client: AsyncClient, fronted: AsyncClient, golden_target: Path
) -> None:
    plain = await client.complete(LONG[:40], max_tokens=20, temperature=0.0)
    for options in (
        {"max_tokens": 20},
        {"max_tokens": 1},
        {"max_tokens": 20, "n": 2, "logprobs": 2},
    ):
        asked: Any = {"temperature": 0.0, "prompt_logprobs": 0, **options}
        events = [event async for event in fronted.generate(LONG[:40], **asked)]
        kinds = [type(event) for event in events if not (isinstance(event, Chunk) and event.index)]
        assert kinds[0] is PromptLogprobs
        assert (kinds.count(PromptLogprobs), kinds[-1]) == (1, Finished)
        answer = Completion.of(events)
        check(answer.prompt_logprobs, logs_of(golden_target, LONG[:40]), LONG[:40], 0)
        assert answer.token_ids == plain.token_ids[: options["max_tokens"]]


async def test_prompts_are_scored_beside_others_and_change_nobody_s_answer(
    client: AsyncClient, golden_target: Path
) -> None:
    alone = await client.complete(LONG[:30], max_tokens=60, temperature=0.0)
    prompts = [LONG[at : at + 90 + at] for at in range(6)]
    neighbour, *scored = await asyncio.gather(
        client.complete(LONG[:30], max_tokens=60, temperature=0.0),
        *(client.complete(ids, max_tokens=0, prompt_logprobs=1) for ids in prompts),
    )
    assert neighbour.token_ids == alone.token_ids
    for ids, answer in zip(prompts, scored, strict=True):
        check(answer.prompt_logprobs, logs_of(golden_target, ids), ids, 1)


async def test_a_prompt_that_fills_the_context_is_scored_and_no_longer_one(
    client: AsyncClient, golden_target: Path
) -> None:
    context = (await client.model_info()).context_length
    whole = [(5 * at + at * at) % VOCAB for at in range(context)]
    answer = await client.complete(whole, max_tokens=0, prompt_logprobs=1, timeout=120.0)
    check(answer.prompt_logprobs, logs_of(golden_target, whole), whole, 1)
    for more, most in (([5], 0), ([], 1)):
        with pytest.raises(InvalidRequest, match=r"tokenized\.input_ids: "):
            await client.complete([*whole, *more], max_tokens=most, prompt_logprobs=1)


async def test_a_prompt_of_one_token_has_nothing_to_tell(client: AsyncClient) -> None:
    answer = await client.complete([5], max_tokens=0, prompt_logprobs=5)
    assert answer.prompt_logprobs == PromptLogprobs((None,), (None,))


async def test_more_scores_than_a_request_may_have_are_refused_in_words(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_PROMPT_LOGPROBS >= 131_072 * 2  # what evaluations ask of long contexts
    monkeypatch.setattr("dspark.types.MAX_PROMPT_LOGPROBS", 100)
    with pytest.raises(
        InvalidRequest, match="101 tokens times 1 are more than 100 log-probabilities"
    ):
        await client.complete(LONG[:101], prompt_logprobs=0)


async def test_a_bug_at_the_scores_fails_that_request_alone(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise IndexError("a bug")

    monkeypatch.setattr("verify_service.packed_runner.prompt_logprobs", broken)
    good, bad = await asyncio.gather(
        client.complete(LONG[:30], max_tokens=30),
        client.complete(LONG[:50], max_tokens=0, prompt_logprobs=1),
        return_exceptions=True,
    )
    assert isinstance(good, Completion), good
    assert type(bad).__name__ == "ServerError", bad


http = of_module()


def post(cell: HttpCell, path: str = "completions", **body: Any) -> Any:
    return cell.post(f"/v1/{path}", body)


TEXTS = ["def add(a, b):\n    return a + b\n", "Problem 1: Add 12 and 30.\n"]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_what_evaluation_harnesses_ask_for(http: HttpCell, max_tokens: int) -> None:
    """As lm-eval's `local-completions` asks and reads: contexts and continuations as ids."""
    tokenizer = Tokenizer.load(TARGET)
    assert tokenizer is not None
    prompts = [list(tokenizer.encode(text)) for text in TEXTS]
    reply = post(
        http, prompt=prompts, temperature=0, max_tokens=max_tokens, logprobs=1, seed=1234, echo=True
    )
    assert reply.status_code == 200, reply.text
    for choice, ids in zip(
        sorted(reply.json()["choices"], key=lambda one: one["index"]), prompts, strict=True
    ):
        told = choice["logprobs"]
        assert len({len(column) for column in told.values()}) == 1
        assert len(told["token_logprobs"]) == len(ids) + max_tokens
        firsts = [told[name][0] for name in ("token_logprobs", "top_logprobs", "text_offset")]
        assert firsts == [None, None, 0]
        context, until = 5, -max_tokens or None
        logs, said = logs_of(TARGET, ids)[context - 1 :], ids[context:]
        values = told["token_logprobs"][context:until]
        wanted = [float(row[token]) for row, token in zip(logs, said, strict=True)]
        assert values == pytest.approx(wanted, abs=1e-3)
        greedy = [
            value == max(top.values())
            for value, top in zip(values, told["top_logprobs"][context:until], strict=True)
        ]
        assert greedy == [int(row.argmax()) == token for row, token in zip(logs, said, strict=True)]
        assert choice["text"].startswith(tokenizer.decode(ids, skip_special=False))
        assert "".join(told["tokens"])[: told["text_offset"][-1]] == "".join(told["tokens"][:-1])


def test_an_echo_of_a_text_without_an_answer_is_the_text(http: HttpCell) -> None:
    for extra in ({}, {"logprobs": 2}, {"stream": True}, {"stream": True, "logprobs": 2}):
        reply = post(http, prompt=TEXTS[0], max_tokens=0, echo=True, **extra)
        assert reply.status_code == 200, reply.text
        if not extra.get("stream"):
            (choice,) = reply.json()["choices"]
            assert (choice["text"], choice["finish_reason"]) == (TEXTS[0], "length")
            assert (choice["logprobs"] is None) is ("logprobs" not in extra)
            assert reply.json()["usage"]["completion_tokens"] == 0


def test_what_a_stream_tells_of_a_long_prompt_is_made_once_and_beside_the_event_loop(
    http: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def watched(*told: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return echo_logprobs(*told)

    monkeypatch.setattr(completions, "echo_logprobs", watched)
    monkeypatch.setattr(reply, "MANY", 4)
    with http.openai() as client:
        asked: Any = {"model": "target", "max_tokens": 3, "echo": True, "logprobs": 2, "n": 3}
        parts = [
            part
            for event in client.completions.create(prompt=TEXTS, stream=True, **asked)
            for part in event.choices
        ]
    assert sorted(part.index for part in parts if part.text in TEXTS) == list(range(6))
    assert len(threads) == len(TEXTS)
    assert http.portal.call(threading.get_ident) not in threads


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_ends_before_its_prompt_is_scored_is_told_all_the_same(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody aborts it while it waits for a place."""
    monkeypatch.setattr("coordinator.http.running_prompts.secrets.token_hex", lambda _: "aa")
    with HttpCell(max_running=1) as cell, Client(cell.coordinator.endpoint) as client:
        held = client.generate("x", max_tokens=3000, ignore_eos=True, request_id="held")
        next(iter(held))
        body = {"prompt": TEXTS[0], "max_tokens": 3, "echo": True, "logprobs": 1, "stream": stream}
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(post, cell, **body)
            wait_until(lambda: cell.coordinator.cell.admission.find("cmpl-aa") is not None)
            assert client.abort(["cmpl-aa"])
            answer = told.result(60)
        held.close()
        assert answer.status_code == 200, answer.text
        if not stream:
            (choice,) = answer.json()["choices"]
            told_of = (choice["text"], choice["logprobs"], choice["finish_reason"])
            assert told_of == (TEXTS[0], None, "abort")
        else:
            assert TEXTS[0].splitlines()[0] in answer.text
            assert '"finish_reason":"abort"' in answer.text


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_prompt_logprobs_by_their_own_name_are_made_once_for_all_answers(
    http: HttpCell, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def watched(*told: Any) -> dict[str, Any]:
        made.append(prompt_logprobs(*told))
        return made[-1]

    for module in (chat, completions):
        monkeypatch.setattr(module, "prompt_logprobs", watched)
    messages = {"messages": [{"role": "user", "content": TEXTS[1]}]}
    what = {"prompt": TEXTS} if path == "completions" else messages
    asked = {"max_tokens": 2, "n": 3, "prompt_logprobs": 2, "return_token_ids": True, **what}
    reply = post(http, path, **asked).json()
    # where vLLM has them: a chat has one prompt, completions have many
    prompts, whose = (2, reply["choices"]) if path == "completions" else (1, [reply])
    assert ("prompt_token_ids" in reply["choices"][0]) is (path == "completions")
    assert (len(made), len(reply["choices"])) == (prompts, 3 * prompts)
    shown = [each["prompt_logprobs"] for each in whose]
    times = len(whose) // prompts
    assert shown == [each["prompt_logprobs"] for each in made for _ in range(times)]
    for each, told in zip(whose, shown, strict=True):
        ids = each["prompt_token_ids"]
        assert (told[0], len(told)) == (None, len(ids))
        for token, one in zip(ids[1:], told[1:], strict=True):
            own = one[str(token)]
            assert set(own) == {"logprob", "rank", "decoded_token"}
            assert sorted(each["rank"] for each in one.values())[:2] == [1, 2]
            assert len(one) == (2 if own["rank"] <= 2 else 3)


def test_what_http_cannot_tell_is_refused_by_name(http: HttpCell) -> None:
    for body, param in (
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"prompt": "x", "echo": True, "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "echo": True, "logprobs": -1}, "logprobs"),
        ({"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt": "x", "prompt_logprobs": True}, "prompt_logprobs"),
    ):
        assert http.refused("/v1/completions", body).startswith(f"{param}: ")
