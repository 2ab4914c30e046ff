"""Calls in an answer are told whole, however its text is cut; what is no call is text, as it was written."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from coordinator.http import objects
from coordinator.http.calls import CallReader, Part
from coordinator.http.template import ChatTemplate
from coordinator.http.tools import FORMATS, format_of

TEMPLATES = Path(__file__).parents[2] / "data" / "chat_templates"
HERMES, LLAMA = FORMATS["hermes"], FORMATS["llama_json"]


def read(form: Any, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    reader = CallReader(form)
    text, calls = "", list[list[str]]()
    for part in [*(part for piece in pieces for part in reader.push(piece)), *reader.close()]:
        assert part != Part()
        text += part.text
        if part.name:
            assert part.call == len(calls)
            calls.append([part.name, ""])
        if part.call is not None:
            calls[part.call][1] += part.arguments
    return text, [(name, arguments) for name, arguments in calls]


def cuts(text: str) -> list[list[str]]:
    made = [[text], list(text)]
    for seed in range(20):
        places = sorted(random.Random(seed).sample(range(len(text)), min(4, len(text))))
        made.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return made


ARGUMENTS = '{"city": "Köln \\"}{", "days": [1, {"x": 2}]}'
CALL = '<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
TURNED = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'


@pytest.mark.parametrize(
    ("form", "written", "text", "calls"),
    [
        (HERMES, "plain <text> {}", "plain <text> {}", []),
        (HERMES, CALL, "", [("weather", ARGUMENTS)]),
        (HERMES, f"Let me see.\n{CALL}\n{CALL}", "Let me see.", [("weather", ARGUMENTS)] * 2),
        (HERMES, f"{CALL}\nDone.", "\nDone.", [("weather", ARGUMENTS)]),
        (HERMES, TURNED, "", [("f", '{"a": 1}')]),
        (HERMES, "<tool_call>\nnot JSON\n</tool_call>!", "<tool_call>\nnot JSON\n</tool_call>!", []),
        (HERMES, "<tool_call>\n{broken", "<tool_call>\n{broken", []),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}, "id": [1, "}"]}</tool_call>.', ".", [("f", "{}")]),
        (HERMES, '<tool_call>{"id": 7, "name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}</tool_call>.', ".", [("f", "{}")]),
        (HERMES, f"{CALL}  \n {CALL} \n", "", [("weather", ARGUMENTS)] * 2),
        (HERMES, f"{CALL}  and", "  and", [("weather", ARGUMENTS)]),
        (HERMES, "\n" * 80 + "a\n\n" + CALL, "a", [("weather", ARGUMENTS)]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>', '<tool_call>{"name": "f"}</tool_call>', []),
        (LLAMA, ' {\n "name" : "f", "parameters": {"a": 1} }', "", [("f", '{"a": 1}')]),
        (LLAMA, '{"parameters": {"a": 1}, "name": "f"}', "", [("f", '{"a": 1}')]),
        (LLAMA, '{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
        (LLAMA, '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
        (LLAMA, '{"name": "f", "parameters": {}} and', " and", [("f", "{}")]),
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        (LLAMA, '{"x": 1}', '{"x": 1}', []),
        (LLAMA, 'say {"name": "f", "parameters": {}}', 'say {"name": "f", "parameters": {}}', []),
        (LLAMA, '{"name": 3}', '{"name": 3}', []),
    ],
)
def test_calls_are_read_however_the_text_is_cut(
    form: Any, written: str, text: str, calls: list[tuple[str, str]]
) -> None:
    for pieces in cuts(written):
        assert read(form, pieces) == (text, calls), pieces
    for _, arguments in calls:
        if written.endswith(("call>", "}}")):
            json.loads(arguments)


def test_every_character_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = [0]
    take = objects.JsonValue.take

    def counted(value: objects.JsonValue, text: str, at: int) -> int:
        end = take(value, text, at)
        looked[0] += end - at
        return end

    monkeypatch.setattr(objects.JsonValue, "take", counted)
    arguments = json.dumps({"a": "x{" * 5_000})
    for written in (
        '<tool_call>{"name": "f", "arguments": ' + arguments + "}",
        '<tool_call>{"arguments": ' + arguments + ', "name": "f"}',
        '<tool_call>{"other": ' + arguments,
    ):
        looked[0] = 0
        text, calls = read(HERMES, list(written))
        assert calls == [("f", arguments)] or text == written
        assert len(arguments) <= looked[0] <= len(written)


def test_arguments_are_told_as_they_are_written() -> None:
    reader = CallReader(HERMES)
    reader.push('<tool_call>\n{"name": "f", "arguments": {"a": ')
    assert reader.push('"Kö') == [Part(call=0, arguments='"Kö')]


@pytest.mark.parametrize(
    ("template", "name"),
    [("qwen", "hermes"), ("hermes", "hermes"), ("llama_3", "llama_json"), ("chatml", None), ("zephyr", None),
     ("glm", None), ("mistral", None)],
)  # fmt: skip
def test_the_template_says_how_calls_are_written(template: str, name: str | None) -> None:
    found = format_of(ChatTemplate((TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")))
    assert (found.name if found else None) == name
