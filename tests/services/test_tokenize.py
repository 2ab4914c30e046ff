"""Texts and conversations become ids and back, as vLLM has it, on the tiny pair."""

import threading
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from coordinator.reception import input_processor
from coordinator.reception.tokenizer import Tokenizer
from tests.services.http_cell import HttpCell, of_module, target_that_calls
from tests.services.test_tools_served import tool

SAID: Any = {"messages": [{"role": "user", "content": "wake me"}]}

cell = of_module(target_that_calls)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["param"]


def test_texts_become_ids_and_back_as_vllm_has_it(cell: HttpCell) -> None:
    ask: Any = {"model": "tiny", "prompt": "def add(a, b):\n    return a + b # Grüße"}
    made = cell.post("/tokenize", {**ask, "return_token_strs": True}).json()
    assert set(made) == {"count", "max_model_len", "tokens", "token_strs"}
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
    for absent in ({}, {"return_token_strs": None}):
        assert cell.post("/tokenize", ask | absent).json()["token_strs"] is None
    answer = cell.post("/v1/completions", {**ask, "return_token_ids": True}).json()
    assert answer["choices"][0]["prompt_token_ids"] == made["tokens"]
    back = cell.post("/detokenize", {"model": "tiny", "tokens": made["tokens"]})
    assert back.json() == {"prompt": ask["prompt"]}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", **SAID}, "prompt"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "x", "tools": []}, "tools"),
        ("/tokenize", {**SAID, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [], "model": "other"}, "model"),
    ],
)
def test_what_is_wrong_is_named(cell: HttpCell, path: str, body: Any, param: str) -> None:
    assert refusal(cell.post(path, body)) == (404 if param == "model" else 400, param)


def test_long_lists_of_ids_are_bounded_and_read_beside_the_event_loop(
    cell: HttpCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, name_of, threads = Tokenizer.decode, Tokenizer.name_of, set[int]()

    def decoded(self: Tokenizer, ids: Sequence[int], *, skip_special: bool) -> str:
        if len(ids) > input_processor.LONG_IDS:  # not the last characters of an answer
            threads.add(threading.get_ident())
        return decode(self, ids, skip_special=skip_special)

    def named(self: Tokenizer, token: int) -> str | None:
        threads.add(threading.get_ident())
        return name_of(self, token)

    monkeypatch.setattr(Tokenizer, "decode", decoded)
    monkeypatch.setattr(Tokenizer, "name_of", named)
    most = cell.coordinator.cell.membership.verifiers[0].context_length
    ids = [65] * most
    assert cell.post("/detokenize", {"tokens": ids}).status_code == 200
    long = {"prompt": "ab " * input_processor.LONG_IDS, "return_token_strs": True}
    assert cell.post("/tokenize", long).json()["count"] > input_processor.LONG_IDS
    echo: Any = {"prompt": ids[: 2 * input_processor.LONG_IDS], "echo": True, "max_tokens": 4}
    assert cell.post("/v1/completions", echo).status_code == 200
    assert threads
    assert cell.portal.call(threading.get_ident) not in threads
    for path, body, param in (
        ("/detokenize", {"tokens": [*ids, 65]}, "tokens"),
        ("/v1/completions", {**echo, "prompt": [*ids, 65]}, "prompt"),
    ):
        error = cell.post(path, body).json()["error"]
        assert error["param"] == param
        assert f"{most + 1} ids are more than the context of {most} tokens" in error["message"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
        {"tools": [tool("alarm", strict=True)]},
        {"tools": [tool("alarm")], "tool_choice": "none"},
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
    ],
)
def test_a_conversation_is_tokenized_with_the_options_of_a_chat(
    cell: HttpCell, options: dict[str, Any]
) -> None:
    ways: Any = ({}, dict.fromkeys(options), options)
    plain, null, told = (cell.post("/tokenize", {**SAID, **more}).json() for more in ways)
    assert null == plain, "as if they were absent"
    fields = {"max_tokens": 2, "return_token_ids": True, **options}
    made = cell.post("/v1/chat/completions", {**SAID, **fields}).json()
    assert told["tokens"] == made["prompt_token_ids"]
    assert (told == plain) is (not options or "tool_choice" in options)
    streamed = [*cell.chat(**SAID, extra_body=fields, stream=True)]
    firsts = [getattr(event, "prompt_token_ids", None) for event in streamed]
    assert (firsts[0], any(firsts[1:])) == (told["tokens"], False)
    if options:
        wrong = cell.post("/tokenize", {"prompt": "wake me", **options})
        assert refusal(wrong) == (400, min(options))


def test_an_option_that_a_chat_refuses_is_refused_to_who_tokenizes_it(cell: HttpCell) -> None:
    for path in ("/tokenize", "/v1/chat/completions"):
        told = cell.post(path, {**SAID, "reasoning_effort": "low"})
        assert told.status_code == 400
        assert told.json()["error"]["message"].startswith("reasoning_effort: the target's chat")
