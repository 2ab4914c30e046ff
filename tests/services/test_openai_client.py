"""The official `openai` client against a real cell of the tiny pair, held to the gRPC interface."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from coordinator.reception.tokenizer import Tokenizer
from dspark.client import Client
from tests.services.http_cell import TARGET, HttpCell, of_module

MODEL = "target"
PROMPT = "Worksheet on sums\n\nProblem 1: Add 12 and 30.\n"
CODE = "def add(a, b):\n"


cell = of_module()


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


def told(client: openai.OpenAI, **fields: Any) -> tuple[Any, list[Any]]:
    """A completion whole, and the events of the same one streamed, which add up to it."""
    whole, events = complete(client, **fields), list(complete(client, **fields, stream=True))
    add_up(events, whole)
    return whole, events


def add_up(events: list[Any], whole: Any) -> None:
    """Every answer's text and log-probabilities, and its reason at its end."""
    for choice in whole.choices:
        parts = [part for event in events for part in event.choices if part.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        reasons = [part.finish_reason for part in parts]
        assert reasons == [None] * (len(parts) - 1) + [choice.finish_reason]
        scores = [part.logprobs for part in parts if part.logprobs is not None]
        for name in ("tokens", "text_offset") if choice.logprobs else ():
            columns = (getattr(each, name) for each in scores)
            assert list(itertools.chain(*columns)) == getattr(choice.logprobs, name)


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
    whole, events = told(client, **asked)
    assert len({event.id for event in events}) == 1
    assert len(events) > 4
    usage = {"include_usage": True}
    *parts, last = complete(client, **asked, stream=True, stream_options=usage)
    add_up(parts, whole)
    assert {part.id for part in parts} == {last.id}
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(part.usage is None for part in parts)


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
    assert "".join(each.choices[0].delta.content or "" for each in parts) == whole.message.content
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
    answer, _ = told(client, **asked)
    assert [choice.text for choice in answer.choices] == [choice.text for choice in said.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) > 1


def test_several_prompts_are_answered_in_their_order(client: openai.OpenAI) -> None:
    prompts = [CODE, PROMPT]
    alone = [complete(client, prompt=prompt, max_tokens=12) for prompt in prompts]
    both = complete(client, prompt=prompts, max_tokens=12)
    assert [choice.text for choice in both.choices] == [one.choices[0].text for one in alone]
    assert both.usage.total_tokens == sum(one.usage.total_tokens for one in alone)
    tokenizer = Tokenizer.load(TARGET)
    assert tokenizer is not None
    ids = [list(tokenizer.encode(prompt)) for prompt in prompts]
    by_ids, _ = told(client, prompt=ids, max_tokens=12)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in both.choices]


def test_an_echo_stands_before_the_answer(client: openai.OpenAI) -> None:
    plain = complete(client, prompt=CODE, max_tokens=8)
    echoed, _ = told(client, prompt=CODE, max_tokens=8, echo=True)
    assert echoed.choices[0].text == CODE + plain.choices[0].text
    told(client, prompt=[CODE, PROMPT], max_tokens=5, n=2, echo=True, logprobs=2)


def test_a_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=60).choices[0].text
    stop = whole[10:13]
    for given in ([stop, "zzzz"], stop):
        (choice,) = told(client, max_tokens=60, stop=given)[0].choices
        assert choice.text == whole[: whole.index(stop)]
        assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)


def test_log_probabilities_of_a_completion(client: openai.OpenAI) -> None:
    whole, _ = told(client, max_tokens=10, logprobs=3)
    (choice,) = whole.choices
    said = choice.logprobs
    assert "".join(said.tokens) == choice.text
    assert all(value <= 0 for value in said.token_logprobs)
    assert [len(top) for top in said.top_logprobs] == [3] * len(said.tokens)
    for token, value, top in zip(said.tokens, said.token_logprobs, said.top_logprobs, strict=True):
        assert top[token] == value == max(top.values())  # greedy takes the likeliest
    assert said.text_offset == [
        len("".join(said.tokens[:index])) for index in range(len(said.tokens))
    ]


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
    parts = [one for part in streamed if part.logprobs for one in part.logprobs.content or []]
    assert [one.token for one in parts] == [one.token for one in content]


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
    for metrics in (last.metrics, complete(client, **told_all).metrics):
        spec = metrics["speculative_decoding"]
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
        assert metrics["time_to_first_token_ms"] > 0
    by_header = complete(client, extra_headers={"X-Spec-Decode-Metrics": "summary"})
    assert "per_step_accepted" not in by_header.metrics["speculative_decoding"]


def test_token_ids_are_returned_on_request(client: openai.OpenAI, direct: Client) -> None:
    said = direct.complete(PROMPT, max_tokens=12, temperature=0.0)
    asked = {"max_tokens": 12, "extra_body": {"return_token_ids": True}}
    whole, events = told(client, **asked)
    assert tuple(whole.choices[0].token_ids) == said.token_ids
    parts = [event.choices[0] for event in events]
    assert tuple(token for part in parts for token in part.token_ids) == said.token_ids
    assert len(parts[0].prompt_token_ids) == said.end.usage.prompt_tokens
