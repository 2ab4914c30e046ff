"""The official `openai` client against the HTTP front of a real cell of the tiny pair, held to the
gRPC interface."""

import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from coordinator.reception.tokenizer import Tokenizer
from dspark.client import Client
from tests.services.http_cell import TARGET, HttpCell

MODEL = "target"
PROMPT = "Worksheet on sums\n\nProblem 1: Add 12 and 30.\n"
CODE = "def add(a, b):\n"


@pytest.fixture(scope="module")
def cell() -> Iterator[HttpCell]:
    with HttpCell() as running:
        yield running


@pytest.fixture
def client(cell: HttpCell) -> Iterator[openai.OpenAI]:
    with cell.openai() as made:
        yield made


@pytest.fixture
def direct(cell: HttpCell) -> Iterator[Client]:
    with Client(cell.coordinator.endpoint) as made:
        yield made


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    """A completion of `PROMPT`, the likeliest one unless the fields say otherwise."""
    return client.completions.create(
        **{"model": MODEL, "prompt": PROMPT, "temperature": 0.0, **fields}
    )


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    turn = {"role": "user", "content": PROMPT}
    return client.chat.completions.create(**{"model": MODEL, "messages": [turn], **fields})


def text_of(events: Any) -> str:
    return "".join(event.choices[0].text for event in events)


def test_models_are_listed_and_found_by_name(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object) == (MODEL, "model")
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-4")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")


def test_a_completion_says_what_the_grpc_interface_says(
    client: openai.OpenAI, direct: Client
) -> None:
    said = direct.complete(PROMPT, max_tokens=32, temperature=0.0)
    answer = complete(client, max_tokens=32)
    (choice,) = answer.choices
    assert (choice.text, choice.index, choice.logprobs) == (said.text, 0, None)
    assert choice.finish_reason == said.end.finish_reason
    usage, wanted = answer.usage, said.end.usage
    assert usage.prompt_tokens == wanted.prompt_tokens
    assert usage.completion_tokens == wanted.completion_tokens
    assert usage.total_tokens == wanted.prompt_tokens + wanted.completion_tokens
    assert (answer.object, answer.model) == ("text_completion", MODEL)


def test_a_streamed_completion_adds_up_to_the_whole_one(client: openai.OpenAI) -> None:
    asked: Any = {"max_tokens": 40, "seed": 3, "temperature": 0.8}
    whole = complete(client, **asked)
    usage = {"include_usage": True}
    *parts, last = complete(client, **asked, stream=True, stream_options=usage)
    assert len({event.id for event in (*parts, last)}) == 1
    assert text_of(parts) == whole.choices[0].text
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(part.usage is None for part in parts)
    assert len(parts) > 4


def test_a_chat_is_its_template_and_an_answer(client: openai.OpenAI, direct: Client) -> None:
    messages = [{"role": "system", "content": "Arithmetic."}, {"role": "user", "content": PROMPT}]
    answer = chat(client, messages=messages, max_tokens=24, temperature=0)
    said = direct.complete(f"Arithmetic.\n\n{PROMPT}", max_tokens=24, temperature=0.0)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", said.text)
    assert (answer.object, choice.finish_reason) == ("chat.completion", said.end.finish_reason)
    assert answer.usage.prompt_tokens == said.end.usage.prompt_tokens


def test_a_streamed_chat_begins_with_the_role_and_ends_with_a_reason(client: openai.OpenAI) -> None:
    asked: Any = {"max_completion_tokens": 30, "seed": 9}
    answer = chat(client, **asked)
    (whole,) = answer.choices
    usage = {"include_usage": True}
    first, *parts, last = chat(client, **asked, stream=True, stream_options=usage)
    delta = first.choices[0].delta
    assert (first.object, delta.role, delta.content) == ("chat.completion.chunk", "assistant", "")
    told = [part.choices[0].delta.content or "" for part in parts]
    assert "".join(told) == whole.message.content
    assert [part.choices[0].finish_reason for part in [first, *parts[:-1]]] == [None] * len(parts)
    assert parts[-1].choices[0].finish_reason == whole.finish_reason
    assert (last.choices, last.usage) == ([], answer.usage)


def test_the_client_s_own_accumulating_stream_works(client: openai.OpenAI) -> None:
    whole = chat(client, temperature=0, max_tokens=40).choices[0].message.content
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
    with client.chat.completions.stream(**asked, temperature=0, stop=whole[12:15]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole[: whole.index(whole[12:15])]
    assert final.choices[0].finish_reason == "stop"


def test_several_answers_differ_and_equal_those_of_grpc(
    client: openai.OpenAI, direct: Client
) -> None:
    said = direct.complete(CODE, max_tokens=20, seed=5, n=3)
    asked: Any = {"prompt": CODE, "temperature": None, "max_tokens": 20, "seed": 5, "n": 3}
    answer = complete(client, **asked)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in said.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) > 1
    texts = ["", "", ""]
    ended = []
    for event in complete(client, **asked, stream=True):
        for choice in event.choices:
            texts[choice.index] += choice.text
            ended += [choice.index] if choice.finish_reason else []
    assert texts == [choice.text for choice in answer.choices]
    assert sorted(ended) == [0, 1, 2]


def test_several_prompts_are_answered_in_their_order(client: openai.OpenAI) -> None:
    prompts = [CODE, PROMPT]
    alone = [complete(client, prompt=prompt, max_tokens=12) for prompt in prompts]
    both = complete(client, prompt=prompts, max_tokens=12)
    assert [choice.text for choice in both.choices] == [one.choices[0].text for one in alone]
    assert both.usage.total_tokens == sum(one.usage.total_tokens for one in alone)
    tokenizer = Tokenizer.load(TARGET)
    assert tokenizer is not None
    ids = [list(tokenizer.encode(prompt)) for prompt in prompts]
    by_ids = complete(client, prompt=ids, max_tokens=12)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in both.choices]
    streamed = ["", ""]
    for event in complete(client, prompt=ids, max_tokens=12, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in both.choices]


def test_an_echo_stands_before_the_answer(client: openai.OpenAI) -> None:
    plain = complete(client, prompt=CODE, max_tokens=8)
    echoed = complete(client, prompt=CODE, max_tokens=8, echo=True)
    assert echoed.choices[0].text == CODE + plain.choices[0].text
    streamed = complete(client, prompt=CODE, max_tokens=8, echo=True, stream=True)
    assert text_of(streamed) == echoed.choices[0].text


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=60).choices[0].text
    stop = whole[10:13]
    answer = complete(client, max_tokens=60, stop=[stop, "zzzz"])
    assert answer.choices[0].text == whole[: whole.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == stop
    events = list(complete(client, max_tokens=60, stop=stop, stream=True))
    assert text_of(events) == answer.choices[0].text
    assert events[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    (choice,) = complete(client, max_tokens=10, logprobs=3).choices
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert all(value <= 0 for value in told.token_logprobs)
    assert [len(top) for top in told.top_logprobs] == [3] * len(told.tokens)
    for token, value, top in zip(told.tokens, told.token_logprobs, told.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())  # greedy takes the likeliest
    assert told.text_offset == [
        len("".join(told.tokens[:index])) for index in range(len(told.tokens))
    ]
    streamed = list(complete(client, max_tokens=10, logprobs=3, stream=True))
    parts = [event.choices[0].logprobs for event in streamed if event.choices[0].logprobs]
    assert [token for part in parts for token in part.tokens or []] == told.tokens
    assert [offset for part in parts for offset in part.text_offset or []] == told.text_offset


def test_log_probabilities_of_a_chat(client: openai.OpenAI) -> None:
    asked: Any = {"max_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    choice = chat(client, **asked).choices[0]
    content = choice.logprobs.content
    assert b"".join(bytes(one.bytes or []) for one in content).decode() == choice.message.content
    for one in content:
        assert len(one.top_logprobs) == 2
        assert math.isclose(one.top_logprobs[0].logprob, one.logprob)
        assert one.top_logprobs[0].token == one.token
    streamed = [event.choices[0] for event in chat(client, **asked, stream=True)]
    told = [one for part in streamed if part.logprobs for one in part.logprobs.content or []]
    assert [one.token for one in told] == [one.token for one in content]


def test_penalties_bias_and_the_other_fields_change_the_answer(
    client: openai.OpenAI, direct: Client
) -> None:
    tokenizer = Tokenizer.load(TARGET)
    assert tokenizer is not None
    (comma,) = tokenizer.encode(",")
    answer = complete(client, prompt=CODE, max_tokens=5, logit_bias={str(comma): 100})
    assert answer.choices[0].text == ",,,,,"
    law: Any = {"presence_penalty": 1.5, "frequency_penalty": 0.5, "top_p": 0.9, "seed": 4}
    law |= {"temperature": 0.9, "max_tokens": 24}
    more: Any = {"repetition_penalty": 1.2, "top_k": 20, "min_p": 0.02, "min_tokens": 12}
    ours = direct.complete(CODE, **law, **more, policy="off")
    extra = more | {"speculation": {"policy": "off"}}
    theirs = complete(client, prompt=CODE, **law, extra_body=extra)
    assert theirs.choices[0].text == ours.text


def test_what_speculation_did_is_told_on_request(client: openai.OpenAI) -> None:
    extra = {"per_request_spec_decode_metrics": "detailed", "ignore_eos": True}
    told_all = {"extra_body": extra, "max_tokens": 40}
    assert not hasattr(complete(client, max_tokens=40), "metrics")
    usage = {"stream_options": {"include_usage": True}}
    *_, last = complete(client, **told_all, stream=True, **usage)
    for told in (last.metrics, complete(client, **told_all).metrics):
        spec = told["speculative_decoding"]
        histogram = spec["acceptance_histogram"]
        assert len(histogram) == spec["num_spec_tokens"] + 1
        assert sum(histogram) == spec["num_spec_steps"] == len(spec["per_step_accepted"])
        accepted, verified = spec["num_accepted_draft_tokens"], spec["num_draft_tokens"]
        assert sum(index * count for index, count in enumerate(histogram)) == accepted
        assert sum(spec["per_step_accepted"]) == accepted > 0
        assert sum(spec["per_step_drafted"]) == verified <= spec["num_proposed_draft_tokens"]
        by_length = spec["acceptance_histogram_by_draft_length"]
        assert sum(sum(counts) for counts in by_length.values()) == spec["num_spec_steps"]
        assert 1 + spec["num_spec_steps"] + accepted == 40
        assert math.isclose(spec["mean_acceptance_length"], 39 / spec["num_spec_steps"])
        assert told["time_to_first_token_ms"] > 0
    by_header = complete(client, extra_headers={"X-Spec-Decode-Metrics": "summary"})
    assert "per_step_accepted" not in by_header.metrics["speculative_decoding"]


def test_token_ids_are_returned_on_request(client: openai.OpenAI, direct: Client) -> None:
    said = direct.complete(PROMPT, max_tokens=12, temperature=0.0)
    asked = {"max_tokens": 12, "extra_body": {"return_token_ids": True}}
    (choice,) = complete(client, **asked).choices
    assert tuple(choice.token_ids) == said.token_ids
    parts = [event.choices[0] for event in complete(client, **asked, stream=True)]
    assert tuple(token for part in parts for token in part.token_ids) == said.token_ids
    assert len(parts[0].prompt_token_ids) == said.end.usage.prompt_tokens
