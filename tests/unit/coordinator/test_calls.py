"""Calls in an answer are told whole, however its text is cut; what is no call is text, as it was
written."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import TOOL_FORMATS
from coordinator.http.calls import MOST, CallReader
from coordinator.http.reader import BLANK, AnswerPart, Reader
from coordinator.http.schema import Tool
from coordinator.http.template import ChatTemplate
from coordinator.http.thoughts import HarmonyReader
from coordinator.http.tools import FORMATS, _check, format_of
from dspark.errors import InvalidRequest

TEMPLATES = Path(__file__).parents[2] / "data" / "chat_templates"
HERMES, LLAMA = FORMATS["hermes"], FORMATS["llama_json"]


def told(reader: Reader, pieces: list[str]) -> list[AnswerPart]:
    """The parts of an answer whose tokens come one at a time, and of its end."""
    each = [reader.read([piece], over=False) for piece in pieces]
    return [part for parts in [*each, reader.read([], over=True)] for part in parts]


def read(form: Any, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    reader = HarmonyReader() if form is GPT else CallReader(form)
    text, calls = "", list[list[str]]()
    for part in told(reader, pieces):
        assert part != AnswerPart()
        text += part.text
        if part.name:
            assert part.call == len(calls)
            assert (len(part.id) == 9) == form.short_ids
            calls.append([part.name, ""])
        if part.call is not None:
            calls[part.call][1] += part.arguments
    # the last call is complete
    assert reader.called == (bool(calls) and calls[-1][1].endswith(("}", '"')))
    return text, [(name, arguments) for name, arguments in calls]


def cuts(text: str) -> list[list[str]]:
    made = [[text], list(text)]
    for seed in range(20):
        places = sorted(random.Random(seed).sample(range(len(text)), min(4, len(text))))
        made.append([text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)])
    return made


ARGUMENTS = '{"city": "Köln \\"}{\\\\", "days": [1, {"x": 2}]}'
CALL = '<tool_call>\n{"name": "weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
OPEN = '<tool_call>\n{"name": "f", "arguments": {"a": 1'
TWICE = '<tool_call>{"name": "f", "arguments": {"a": 1}, "arguments": {}, "name": "g"}</tool_call>'
TURNED = '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>'


MISTRAL, NAMED = FORMATS["mistral"], FORMATS["mistral_named"]
DEEPSEEK, DEEPSEEK_NAMED, GPT = FORMATS["deepseek"], FORMATS["deepseek_named"], FORMATS["gpt_oss"]
LISTED = (
    '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}, '
    '"id": "abcdefgh1"}]'
)
NAMELY = "[TOOL_CALLS]f[ARGS]{}"
FENCED = "function<｜tool▁sep｜>weather\n```json\n" + ARGUMENTS + "\n```"
UNENDED = "<|channel|>analysis<|message|>hm<|start|>assistant<|message|>Sunny.<|return|>"
CHANNELS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>"


def around(*calls: str) -> str:
    written = "".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


NO_CALLS = [
    (MISTRAL, "[TOOL_CALLS] nothing"),
    (NAMED, "[TOOL_CALLS]two words[ARGS]{}"),
    (NAMED, "[TOOL_CALLS]f[ARGS][{}]"),
    (GPT, '{"no": "channel"}'),
    (HERMES, "plain <text> {}"),
    (HERMES, "<tool_call>\nnot JSON\n</tool_call>!"),
    (HERMES, "<tool_call>\n{broken"),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>'),
    (HERMES, '<tool_call>\n{"name": "f", "other": 1'),
    (HERMES, '<tool_call>{"arguments": , "name": "f"}'),
    (LLAMA, '{"name": "Ada", "age": 36}'),
    (LLAMA, '{"x": 1}'),
    (LLAMA, '{"name": "f", "parameters": }'),
    (LLAMA, 'say {"name": "f", "parameters": {}}'),
    (LLAMA, '{"name": 3}'),
    (LLAMA, '{"name": "\\ud800", "parameters": {}}'),
]
LONG = "x" * 300
NO_HEAD = f"<|start|>{LONG}"
COMMENTARY = CHANNELS + "commentary to=functions.f <|constrain|>json<|message|>"


@pytest.mark.parametrize(
    ("form", "written", "text", "calls"),
    [
        *((form, written, written, []) for form, written in NO_CALLS),
        (MISTRAL, LISTED, "", [("f", '{"a": 1}'), ("g", "{}")]),
        (
            MISTRAL,
            f"So: {LISTED} Done.{LISTED}",
            "So:  Done.",
            [("f", '{"a": 1}'), ("g", "{}")] * 2,
        ),
        (NAMED, f"{NAMELY}[TOOL_CALLS]g[ARGS]{ARGUMENTS}", "", [("f", "{}"), ("g", ARGUMENTS)]),
        (NAMED, f"[TOOL_CALLS]{LONG}{NAMELY}", f"[TOOL_CALLS]{LONG}", [("f", "{}")]),
        (DEEPSEEK, around(FENCED, FENCED), "", [("weather", ARGUMENTS)] * 2),
        (DEEPSEEK_NAMED, "Wait.\n" + around("f<｜tool▁sep｜>{}"), "Wait.", [("f", "{}")]),
        (GPT, CHANNELS + "final<|message|>Sunny <|e", "Sunny <|e", []),
        (GPT, UNENDED, "Sunny.", []),
        (GPT, "<|channel|>analysis", "", []),
        (
            GPT,
            f"{COMMENTARY}{{}}<|call|>{COMMENTARY}{ARGUMENTS}",
            "",
            [("f", "{}"), ("f", ARGUMENTS)],
        ),
        (GPT, " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "", [("f", "{}")]),
        (GPT, CHANNELS + "final<|message|>Sunny<|end|><|start|>assistant", "Sunny", []),
        (GPT, f"{NO_HEAD}<|end|>{CHANNELS}final<|message|>.", f"{NO_HEAD}.", []),
        (HERMES, CALL, "", [("weather", ARGUMENTS)]),
        (HERMES, f"Let me see.\n{CALL}\n{CALL}", "Let me see.", [("weather", ARGUMENTS)] * 2),
        (HERMES, f"{CALL}\nDone.\n", "\nDone.", [("weather", ARGUMENTS)]),
        (HERMES, TURNED, "", [("f", '{"a": 1}')]),
        (HERMES, TWICE, "", [("f", '{"a": 1}')]),
        (HERMES, CALL + OPEN, "", [("weather", ARGUMENTS), ("f", '{"a": 1')]),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {}}', "", [("f", "{}")]),
        (
            HERMES,
            '<tool_call>{"name": "f", "arguments": {}, "id": [1, "}"]}</tool_call>.',
            ".",
            [("f", "{}")],
        ),
        (
            HERMES,
            '<tool_call>{"id": 7, "name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
            "",
            [("f", '{"a": 1}')],
        ),
        (HERMES, '<tool_call>{"name": "f", "arguments": {}</tool_call>.', ".", [("f", "{}")]),
        (HERMES, f"So:{CALL}  \n {CALL} \n", "So:", [("weather", ARGUMENTS)] * 2),
        (HERMES, f"{CALL}  and", "  and", [("weather", ARGUMENTS)]),
        (HERMES, f"{CALL} and ", " and ", [("weather", ARGUMENTS)]),
        (HERMES, "\n" * 80 + "a\n\n" + CALL, "a", [("weather", ARGUMENTS)]),
        (LLAMA, ' {\n "name" : "f", "parameters": {"a": 1} }', "", [("f", '{"a": 1}')]),
        (LLAMA, '{"parameters": {"a": 1}, "name": "f", "id": 1}', "", [("f", '{"a": 1}')]),
        (LLAMA, '{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
        (LLAMA, '{"name": "f", "parameters": {}} and', " and", [("f", "{}")]),
        (LLAMA, '{"name": "f", "parameters": {"a": 1}}', "", [("f", '{"a": 1}')]),
        (
            HERMES,
            '<tool_call>{"name": "", "x": ' + TURNED,
            '<tool_call>{"name": "", "x": ',
            [("f", '{"a": 1}')],
        ),
        (LLAMA, '{"name": "f", "parameters": "\\ud800"}', "", [("f", '"\\ud800"')]),
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


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (around("function<｜tool▁sep｜>{n}\n```json\n{a}\n```"), "deepseek"),
        (around("{n}<｜tool▁sep｜>{a}"), "deepseek_named"),
        ("[TOOL_CALLS]{n}[ARGS]{a}", "mistral_named"),
        ('[TOOL_CALLS][{{"name": "{n}", "arguments": {a}}}]', "mistral"),
    ],
)  # fmt: skip
def test_marks_of_published_templates_are_known(written: str, name: str) -> None:
    text = written.format(n="{{ c.name }}", a="{{ c.arguments | tojson }}")
    source = (
        "{% for m in messages %}{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}"
        + text
        + "{% endif %}"
        "{% endfor %}"
    )
    found = format_of(ChatTemplate(source))
    assert found is FORMATS[name]


def test_names_may_have_128_letters() -> None:
    longest = "f" * 128
    _check([Tool(type="function", function={"name": longest})])
    with pytest.raises(InvalidRequest, match="1 to 128 letters"):
        _check([Tool(type="function", function={"name": longest + "f"})])
    for form, written in (
        (GPT, f"{CHANNELS}commentary to=functions.{longest} <|constrain|>json<|message|>{{}}"),
        (NAMED, f"[TOOL_CALLS]{longest}[ARGS]{{}}"),
    ):
        assert read(form, [written]) == ("", [(longest, "{}")])


def test_thoughts_are_told_apart_however_the_text_is_cut() -> None:
    for written, inside, thought, said in (
        ("\n<think>\nrain?\n\nsun?\n</think>\n\nSunny.\n", False, "rain?\n\nsun?", "Sunny.\n"),
        ("rain?</think>Sunny.", True, "rain?", "Sunny."),
        ("never ends </thi", True, "never ends </thi", ""),
        ("never ends\n", True, "never ends", ""),
        (" Sunny <think>", False, "", " Sunny <think>"),
        ("\n\nSunny.", False, "", "\n\nSunny."),
        ("<think></think>{}", False, "", "{}"),
        ("<thin", False, "", "<thin"),
    ):
        for pieces in cuts(written):
            for reader in (Reader(inside=inside), CallReader(HERMES, inside=inside)):
                parts = told(reader, pieces)
                assert AnswerPart() not in parts
                assert "".join(part.reasoning for part in parts) == thought, pieces
                # a reader of calls leaves out line breaks that an answer begins with
                wanted = said.lstrip("\n") if isinstance(reader, CallReader) else said
                assert "".join(part.text for part in parts) == wanted, pieces
    begun = told(HarmonyReader(), ["<|channel|>analysis<|message|>hm <|e"])
    assert begun == [AnswerPart(reasoning="hm "), AnswerPart(reasoning="<|e")]


def lines_run(written: str) -> int:
    """Lines of the reader that are run for an answer of single characters."""
    count, file = 0, CallReader.__init__.__code__.co_filename

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename == file
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        read(HERMES, list(written))
    finally:
        sys.settrace(before)
    return count


def test_every_character_is_looked_at_once() -> None:
    for written in (
        '<tool_call>{"name": "f", "arguments": {"a": "LONG"}}',
        '<tool_call>{"arguments": {"a": "LONG"}, "name": "f"}',
        '<tool_call>{"other": "LONG"',
        '<tool_call>{"LONG": 1, "name": "f"',
    ):
        once, twice = (lines_run(written.replace("LONG", "x{" * size)) for size in (2000, 4000))
        assert once > 2000
        assert twice < 2.1 * once


def test_arguments_are_told_as_they_are_written() -> None:
    reader = CallReader(HERMES)
    reader.read(['<tool_call>\n{"name": "f", "arguments": {"a": '], over=False)
    assert reader.read(['"Kö'], over=False) == [AnswerPart(call=0, arguments='"Kö')]
    # where no mark of a call may follow, so are line breaks
    assert CallReader(LLAMA).read(["a\n"], over=False) == [AnswerPart("a\n")]


@pytest.mark.parametrize(
    ("reader", "told", "held"),
    [
        (Reader(inside=False), " " * BLANK, ""),
        (CallReader(HERMES), ".\n", "\n" * BLANK),
        (CallReader(HERMES), '<tool_call>{"x": "' + "y" * MOST, ""),
    ],
)
def test_no_more_is_held_than_a_mark_or_a_call_may_take(
    reader: Reader, told: str, held: str
) -> None:
    assert reader.read([told + held], over=False) == [AnswerPart(told)]


@pytest.mark.parametrize(
    ("template", "name"),
    [("qwen", "hermes"), ("hermes", "hermes"), ("llama_3", "llama_json"), ("chatml", None),
    ("zephyr", None),
     ("glm", None), ("mistral", "mistral"), ("gpt_oss", "gpt_oss")],
)  # fmt: skip
def test_the_template_says_how_calls_are_written(template: str, name: str | None) -> None:
    source = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
    found = format_of(ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}))
    assert found is (FORMATS[name] if name else None)


CHANNEL = re.findall(r"<.+?>|analysis|assistant|.", CHANNELS)


@pytest.mark.parametrize(
    ("reader", "tokens", "thought"),
    [
        (Reader(inside=True), ["a", "", "b", "</think>", "c"], 3),
        (Reader(inside=False), ["<think>", "\n", "b", "</", "think", ">", "c"], 4),
        (Reader(inside=False), ["c", "d"], 0),
        (CallReader(HERMES, inside=True), ["a"], 1),
        (HarmonyReader(), [*CHANNEL, "final", "<|message|>", "c"], 2),
    ],
)
def test_tokens_of_thoughts_are_counted(reader: Any, tokens: list[str], thought: int) -> None:
    reader.read(tokens, over=False)
    assert reader.thought == thought


def test_parts_that_come_together_are_joined() -> None:
    written = ["a", "b", "</think>", "c", "d", '<tool_call>{"name": "f", "arguments": ', "{", "}}"]
    calls = "</tool_call>", '<tool_call>{"name": "g", "arguments": {}}', "</tool_call>", "e"
    reader = CallReader(HERMES, inside=True)
    parts = [part._replace(id="") for part in reader.read([*written, *calls], over=True)]
    together = [
        AnswerPart(reasoning="ab"),
        AnswerPart("cd"),
        AnswerPart(call=0, name="f", arguments="{}"),
    ]
    assert parts == [*together, AnswerPart(call=1, name="g", arguments="{}"), AnswerPart("e")]


def test_the_setting_names_every_format() -> None:
    assert tuple(FORMATS) == TOOL_FORMATS
