"""What a chat asks of the target, by the target's template and its special tokens."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from coordinator.http.body import validated
from coordinator.http.calls import CallReader
from coordinator.http.chat import AskedChat, read_chat
from coordinator.http.schema import ChatBody
from coordinator.http.template import ChatTemplate
from coordinator.reception.tokenizer import Tokenizer
from dspark.errors import Unsupported

DATA = Path(__file__).parents[2] / "data"
MARKS = ["<think>", "</think>"]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def template_of(family: str) -> ChatTemplate:
    source = (DATA / "chat_templates" / f"{family}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, {"bos_token": "", "eos_token": ""})


def asked(template: str | ChatTemplate, *, special: bool = True, **fields: Any) -> AskedChat:
    backend = Backend.from_file(str(DATA / "pair" / "target" / "tokenizer.json"))
    (backend.add_special_tokens if special else backend.add_tokens)(MARKS)
    api = SimpleNamespace(
        template=template_of(template) if isinstance(template, str) else template,
        processor=SimpleNamespace(tokenizer=Tokenizer(backend)),
        config=SimpleNamespace(tool_format=""),
    )
    body = {"messages": [{"role": "user", "content": "a"}], **fields}
    return asyncio.run(read_chat(api, validated(ChatBody, json.dumps(body).encode())))


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}])
def test_marks_of_thoughts_are_decoded_where_they_are_special(fields: Any) -> None:
    assert asked("qwen", **fields).options["skip_special_tokens"] is False
    assert asked("qwen", special=False, **fields).options["skip_special_tokens"] is None
    assert asked("hermes", **fields).options["skip_special_tokens"] is None


def test_a_budget_begins_thoughts_by_the_token_that_does() -> None:
    def first(special: bool) -> Any:
        options = asked("qwen", special=special, thinking_token_budget=9).options
        return options["constraint"]["structural_tag"]["format"]["elements"][0]["type"]

    assert (first(True), first(False)) == ("token", "const_string")


@pytest.mark.parametrize("family", ["hermes", "gpt_oss"])
@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}])
def test_a_budget_is_refused_where_no_marks_end_thoughts(family: str, fields: Any) -> None:
    with pytest.raises(Unsupported, match=r"^thinking_token_budget: .* no thoughts by <think>"):
        asked(family, thinking_token_budget=9, **fields)


def test_a_conversation_with_tools_has_the_template_for_them_where_there_is_one() -> None:
    template = ChatTemplate("{% for each in messages %}{{ each.content }}{% endfor %}")
    template.for_tools = template_of("qwen")
    plain, none, called = (
        asked(template, **fields)
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": TOOLS})
    )
    assert plain.prompt == none.prompt
    assert called.prompt == asked("qwen", tools=TOOLS).prompt
    assert isinstance(called.reader(), CallReader)
