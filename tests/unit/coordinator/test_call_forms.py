"""A grammar holds an answer to how its target writes calls, and thoughts to their budget."""

import json
import re
from typing import Any

import pytest
import xgrammar

from coordinator.http.schema import Tool
from coordinator.http.thoughts import with_budget
from coordinator.http.tools import FORMATS, _form, part_of
from dspark.errors import Unsupported
from tests.unit.coordinator.test_calls import around

WORDS = [*map(bytes, zip(range(256), strict=True)), b"\xff\xff256", b"\xff\xff257", b""]
SPECIAL = {"[TOOL_CALLS]": 256, "</think>": 257}
TOOLS = [Tool(type="function", function={"name": name, "strict": True}) for name in ("f", "g")]
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "llama_json": '{"name": "f", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "g", "arguments": {}}, {"name": "f", "arguments": {}}]',
    "mistral_named": "[TOOL_CALLS]f[ARGS]{}",
    "deepseek": around("function<｜tool▁sep｜>f\n```json\n{}\n```"),
    "deepseek_named": around("f<｜tool▁sep｜>{}", "g<｜tool▁sep｜>{}"),
    "gpt_oss": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}",
}


def ids_of(written: str, special: dict[str, int]) -> list[int]:
    pieces = (
        re.split("(" + "|".join(map(re.escape, special)) + ")", written) if special else [written]
    )
    return [
        token
        for piece in pieces
        for token in ([special[piece]] if piece in special else piece.encode())
    ]


def accepts(form: Any, written: str, special: dict[str, int]) -> bool:
    info = xgrammar.TokenizerInfo(WORDS, vocab_size=len(WORDS), stop_token_ids=[258])
    made = xgrammar.GrammarCompiler(info).compile_structural_tag(json.dumps(form["structural_tag"]))
    matcher = xgrammar.GrammarMatcher(made)
    return all(map(matcher.accept_token, [*ids_of(written, special), 258]))


@pytest.mark.parametrize("special", [{}, SPECIAL], ids=["plain", "special"])
@pytest.mark.parametrize("name", WRITTEN)
def test_forms_hold_an_answer_to_how_calls_are_written(name: str, special: dict[str, int]) -> None:
    form, written = FORMATS[name], WRITTEN[name]
    forced = _form(TOOLS, "required", form.many, form, special)
    assert accepts(forced, written, special)
    assert not accepts(forced, "Just text.", special)
    assert not accepts(forced, written.replace("{}", '{"a": 1}'), special)
    if not form.free:
        with pytest.raises(Unsupported, match="forced"):
            _form(TOOLS, None, form.many, form, special)
        return
    free = _form(TOOLS, None, form.many, form, special)
    assert accepts(free, f"Well, {written}" if form.marked else written, special)
    assert accepts(free, "Just text.", special)
    assert not accepts(free, written.replace("{}", "no"), special)


@pytest.mark.parametrize("special", [{}, SPECIAL], ids=["plain", "special"])
@pytest.mark.parametrize("name", WRITTEN)
def test_an_answer_that_calls_nothing_has_its_own_form(name: str, special: dict[str, int]) -> None:
    form, written = FORMATS[name], WRITTEN[name]
    answer = part_of({"choice": ["yes", "no"]}, "structured_outputs")
    if not (form.free and form.marked):
        with pytest.raises(Unsupported, match="structured_outputs"):
            _form(TOOLS, None, form.many, form, special, answer, "structured_outputs")
        return
    either = _form(TOOLS, None, form.many, form, special, answer)
    assert accepts(either, written, special)
    assert accepts(either, "no", special)
    assert not accepts(either, "Just text.", special)
    assert not accepts(either, f"yes{written}", special)
    assert _form(TOOLS, "required", form.many, form, special, answer) == _form(
        TOOLS, "required", form.many, form, special
    )


@pytest.mark.parametrize("special", [{}, {"<think>": 256, "</think>": 257}])
def test_a_budget_ends_thoughts_and_a_form_follows(special: dict[str, int]) -> None:
    form = {"choice": ["yes", "no"]}
    bounded = with_budget(9, form, inside=False, token=257, special=special)
    marks = special | {"</think>": 257}
    for thought, fits in (("why not?", True), ("why, oh why not?", False), ("", True)):
        assert accepts(bounded, f"<think>\n{thought}</think>no", marks) is fits
