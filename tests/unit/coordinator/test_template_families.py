"""Conversations come out of the templates of many families as `apply_chat_template` brings them
out: text and ids.

The templates are in the manner of published families, written for these tests: how each marks
turns, and how those that know tools write calls and results. `asking` shows tools and documents
unless they are None.
"""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers

from coordinator.http.chat import _HERE, _cut_behind
from coordinator.http.template import ChatTemplate, read_messages
from coordinator.reception.tokenizer import Tokenizer
from dspark.errors import InvalidRequest, Unsupported

DATA = Path(__file__).parents[2] / "data" / "chat_templates"
FAMILIES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DATA.glob("*.jinja"))}
TOOLS_KNOWN = {
    "llama_3",
    "mistral",
    "qwen",
    "deepseek",
    "command_r7b",
    "hermes",
    "granite",
    "gpt_oss",
    "glm",
}
TOKENIZER = Path(__file__).parents[2] / "data" / "pair" / "target"
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}  # of that tokenizer

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": " What is the weather in Zürich? "}
ANSWER = {"role": "assistant", "content": "<think>rain?</think>\nSunny."}
AGAIN = {"role": "user", "content": "And <b>now</b>?\n"}
CALL = {
    "id": "abcdefgh1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich <b> & 'H'", "days": 2}},
}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {
    "role": "tool",
    "tool_call_id": "abcdefgh1",
    "name": "weather",
    "content": '{"sky": "clear"}',
}
THOUGHT = {"role": "assistant", "content": "Clear.", "reasoning_content": "It says clear."}

TALKS: dict[str, list[dict[str, Any]]] = {
    "question": [USER],
    "rules": [SYSTEM, USER],
    "turns": [USER, ANSWER, AGAIN],
    "rules and turns": [SYSTEM, USER, ANSWER, AGAIN],
    "results": [USER, CALLS, RESULT],
    "an answer after results": [SYSTEM, USER, CALLS, RESULT, ANSWER, AGAIN],
    "reasoning": [USER, CALLS, RESULT, THOUGHT],
}


def test_there_are_as_many_families_as_promised() -> None:
    assert len(FAMILIES) >= 15


@functools.cache
def library(source: str) -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(TOKENIZER / "tokenizer.json"), chat_template=source, **TOKENS
    )


@functools.cache
def ours() -> Tokenizer:
    return Tokenizer.load(TOKENIZER)


def as_a_client_writes(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With arguments as JSON in a text and null for what is not there, as official clients do."""
    written = copy.deepcopy(messages)
    for message in written:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
        message.setdefault("content", None)
        message.setdefault("tool_calls", None)
        message["refusal"] = None
    return written


@pytest.mark.parametrize("begin", [True, False])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", FAMILIES)
def test_text_and_ids_are_the_library_s(name: str, talk: str, begin: bool) -> None:
    messages, theirs = TALKS[talk], library(FAMILIES[name])
    template = ChatTemplate(FAMILIES[name], TOKENS)
    read = read_messages(as_a_client_writes(messages))
    if CALLS in messages and name not in TOOLS_KNOWN:  # it would be left out
        with pytest.raises(Unsupported, match=r"^messages\[\d\]\.tool_calls: "):
            template.fitted(read)
        return
    asked: dict[str, Any] = {"conversation": messages, "add_generation_prompt": begin}
    try:
        wanted = theirs.apply_chat_template(**copy.deepcopy(asked), tokenize=False)
    except jinja2.TemplateError as own:  # the template's own word
        with pytest.raises(InvalidRequest, match=re.escape(str(own))):
            template.render(template.fitted(read), {}, add_generation_prompt=begin)
        return
    assert template.render(template.fitted(read), {}, add_generation_prompt=begin) == wanted
    ids = theirs.apply_chat_template(**copy.deepcopy(asked), tokenize=True, return_dict=False)
    assert list(ours().encode(wanted, add_special=False)) == list(ids)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize("name", ["glm", "qwen", "thinking"])
def test_a_template_s_own_arguments_reach_it(name: str, thinks: bool) -> None:
    wanted = library(FAMILIES[name]).apply_chat_template(
        [USER], tokenize=False, add_generation_prompt=True, enable_thinking=thinks
    )
    template = ChatTemplate(FAMILIES[name], TOKENS)
    said = template.render([USER], {"enable_thinking": thinks}, add_generation_prompt=True)
    assert said == wanted


def test_a_role_a_template_leaves_out_is_refused_by_name() -> None:
    for name in ("phi_3", "zephyr", "llama_2", "gemma"):
        with pytest.raises(Unsupported, match=r"^messages\[1\]\.role: .*'tool'"):
            ChatTemplate(FAMILIES[name], TOKENS).fitted(read_messages([USER, RESULT]))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_developer_is_the_system_where_a_template_has_none(name: str) -> None:
    template = ChatTemplate(FAMILIES[name], TOKENS)
    said = template.fitted(read_messages([{**SYSTEM, "role": "developer"}, USER]))
    assert said[0]["role"] == ("developer" if name in ("gpt_oss", "command_r7b") else "system")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_message_is_continued_where_the_library_continues_it(name: str) -> None:
    for last in ("It is  ", "It\nis", " sunny", ""):
        messages = [USER, {"role": "assistant", "content": last}]
        theirs = library(FAMILIES[name])
        wanted = theirs.apply_chat_template(
            copy.deepcopy(messages), tokenize=False, continue_final_message=True
        )
        template = ChatTemplate(FAMILIES[name], TOKENS)
        marked = [USER, {"role": "assistant", "content": last + _HERE}]
        assert _cut_behind(template.render(marked, {}, add_generation_prompt=False), last) == wanted


def test_calls_are_read_as_clients_write_them_and_wrong_ones_named() -> None:
    call = {**CALL, "function": {"name": "f", "arguments": ""}}
    (read,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert read["tool_calls"][0]["function"]["arguments"] == {}
    wrong = "messages[0].tool_calls[0].function"
    for calls, field in (
        ("x", "messages[0].tool_calls"),
        ([{}], "messages[0].tool_calls[0]"),
        ([{"function": {"name": 3}}], "messages[0].tool_calls[0]"),
        ([{"function": {"name": "f", "arguments": [1]}}], f"{wrong}.arguments"),
        ([{"function": {"name": "f", "arguments": 1}}], f"{wrong}.arguments"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            read_messages([{"role": "assistant", "tool_calls": calls}])
        assert refused.value.field == field
    with pytest.raises(Unsupported, match="function_call"):
        read_messages([{"role": "assistant", "content": "", "function_call": {"name": "f"}}])
    assert read_messages([{"role": "assistant", "content": None}]) == [
        {"role": "assistant", "content": ""}
    ]


@pytest.mark.parametrize("name", sorted(TOOLS_KNOWN))
@pytest.mark.parametrize("written", ['{"city": ', "Zürich", "[1]", "[" * 100_000])
def test_a_call_that_was_no_json_goes_back_as_it_was_written(name: str, written: str) -> None:
    call = {**CALL, "function": {"name": "weather", "arguments": written}}
    template = ChatTemplate(FAMILIES[name], TOKENS)
    said = template.fitted(
        read_messages([USER, {"role": "assistant", "tool_calls": [call]}, RESULT])
    )
    if name == "glm":  # it writes them key by key
        with pytest.raises(InvalidRequest, match="cannot render"):
            template.render(said, {}, add_generation_prompt=True)
        return
    text = template.render(said, {}, add_generation_prompt=True)
    assert written in text or json.dumps(written, ensure_ascii=False) in text


def test_gpt_oss_s_template_gets_what_was_said_before_a_call_as_reasoning() -> None:
    template = ChatTemplate(FAMILIES["gpt_oss"], TOKENS)
    said = {"content": "Let me look.", "reasoning_content": "It rains?", "thinking": "It rains?"}
    turn = {"role": "assistant", "tool_calls": [CALL], **said}
    messages = template.fitted(read_messages([USER, turn, RESULT]))
    assert "clear" in template.render(messages, {}, add_generation_prompt=True)
    text = template.render(messages[:2], {}, add_generation_prompt=False)
    assert "<|channel|>analysis<|message|>It rains?\nLet me look.<|end|>" in text
