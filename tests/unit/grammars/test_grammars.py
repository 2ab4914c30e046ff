"""Grammars of the tiny target, compiled in children of their own."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import xgrammar
from tokenizers import Tokenizer

from dspark.token_bytes import read_token_bytes
from dspark.types import Constraint, ConstraintKind, RefusalReason
from verify_service.grammars import grammars as module
from verify_service.grammars.compiling import compiled
from verify_service.grammars.grammars import (
    CPU_S,
    CROWDED_S,
    MAX_OF_ONE,
    CompiledGrammar,
    GrammarFailed,
    GrammarRefused,
    Grammars,
    GrammarUnsupported,
)
from verify_service.interface import Grammar

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
VOCAB, END = 512, 0
AT_ONCE = 4
KIND = ConstraintKind
NODE = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TARGET, VOCAB, [END])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tokenizer.from_file(str(TARGET / "tokenizer.json"))


def of(future: Future[Grammar]) -> Grammar:
    return future.result(timeout=60)


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def fits(grammars: Grammars, tokenizer: Any, constraint: Constraint, text: str) -> bool:
    matcher = of(grammars.compile(constraint, "")).matcher()
    try:
        matcher.accept(tokenizer.encode(text).ids)
    except ValueError:
        return False
    return bool(matcher.masks(())[0, 0] >> END & 1)


def tagged(expression: str) -> str:
    elements = [{"type": "regex", "pattern": expression}]
    return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})


SHORT = {"type": "json_schema", "json_schema": {"type": "string", "maxLength": 2}}
LENGTH_IN_TAG = json.dumps({"type": "structural_tag", "format": SHORT})


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        (KIND.REGEX, "[a-c]+x?", "abcx", "abd"),
        (KIND.REGEX, r"a.{1,3}[.]\.", "a\\é..", "a\n.."),
        (KIND.REGEX, r"[^x].", "\nb", "\n\n"),
        (KIND.STRUCTURAL_TAG, tagged(r"[^x].[.]"), "\nb.", "\n\n."),
        (KIND.GRAMMAR, 'root ::= "(" root ")" | "x"', "((x))", "((x)"),
        (KIND.CHOICE, json.dumps(['say "ü"\n', "no"]), 'say "ü"\n', "yes"),
        (KIND.CHOICE, json.dumps(["🙂 \x7f\u2028", "no"]), "🙂 \x7f\u2028", "🙃"),
        (KIND.JSON_SCHEMA, json.dumps({"enum": ["🙂"]}), '"🙂"', '"🙃"'),
        (KIND.JSON_OBJECT, "", '{"a": [1, null]}', "[1]"),
        (
            KIND.JSON_SCHEMA,
            '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}',
            '{"n": 3}',
            "{}",
        ),
        (KIND.JSON_SCHEMA, '{"type":"string","minLength":2,"maxLength":3}', '"äß"', '"ä"'),
        (KIND.JSON_SCHEMA, '{"type":"string","maxLength":3}', '"a b"', '"a\tb"'),
        (KIND.JSON_SCHEMA, '{"type":["string","null"],"minLength":1}', '"ab"', '"\x01"'),
        (KIND.JSON_SCHEMA, '{"type":["string","null"],"minLength":1}', "null", '""'),
        (KIND.JSON_SCHEMA, '{"$ref":"#/$defs/a","$defs":{"a":{"type":"string","maxLength":2}}}', '"ß"', '"\t"'),
        (KIND.STRUCTURAL_TAG, LENGTH_IN_TAG, '"ab"', '"\t"'),
        (KIND.STRUCTURAL_TAG, '{"type":"structural_tag","format":{"type":"const_string","value":"hi"}}', "hi", "ho"),
    ],
)
def test_answers_fit_their_form(
    kind: ConstraintKind, text: str, good: str, bad: str, grammars: Grammars, tokenizer: Any
) -> None:
    constraint = Constraint(kind, text)
    assert fits(grammars, tokenizer, constraint, good)
    assert not fits(grammars, tokenizer, constraint, bad)


def test_a_choice_is_written_letter_by_letter() -> None:
    words = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo([*words, b""], vocab_size=257, stop_token_ids=[256])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    made = compiled(compiler, Constraint(KIND.CHOICE, json.dumps(['🙂\x7f"\\', "\u2028\x00"])))
    for text in ('🙂\x7f"\\', "\u2028\x00"):
        matcher = CompiledGrammar(made, [256]).matcher()
        matcher.accept([*text.encode(), 256])
        assert not len(matcher.masks(())), "it is over"


def test_special_tokens_are_no_text() -> None:
    words = read_token_bytes(TARGET, VOCAB)
    assert words is not None
    assert words[:3] == [b"", b"", b""]
    assert b"a" in words


HOSTILE = {
    "deep lists": (KIND.JSON_SCHEMA, '{"type":"array","items":' * 4000 + "{}" + "}" * 4000),
    "many optional keys": (
        KIND.JSON_SCHEMA,
        json.dumps({"type": "object", "properties": {f"key_{n}": {"type": "string"} for n in range(4000)}}),
    ),
    "parentheses": (KIND.REGEX, "(" * 50_000 + ")" * 50_000),
    "repetitions of repetitions": (KIND.REGEX, "((((x{1,500}){1,500}){1,500}){1,500}){1,500}y" * 40),
    "a text that is read in ever more ways": (KIND.REGEX, "(([a-z]{1,60}){1,60}){1,60}"),
    "a loop of rules": (KIND.GRAMMAR, "root ::= " + "(" * 30_000 + "root" + ")" * 30_000),
    "no grammar": (KIND.GRAMMAR, "root ::= missing"),
    "no regex": (KIND.REGEX, "(?=a)b"),
    "no schema": (KIND.JSON_SCHEMA, '{"type":"nonsense"}'),
}


QUOTED = ['"', r"\"", r"\\", r"\n", "\n", r"\x22", r"\u0022", r"\u{22}", '["]', r"[\n]", r"[\\]"]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_compiled_is_refused_and_the_next_one_is_served(name: str, grammars: Grammars) -> None:
    hostile = Constraint(*HOSTILE[name])
    with pytest.raises(GrammarRefused):
        of(grammars.compile(hostile, ""))
    assert of(grammars.compile(Constraint(KIND.REGEX, f"{name}|x"), "")).matcher().masks(()).any()
    assert grammars.compile(hostile, "").done(), "it is remembered"


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "properties": {"a": {"type": "array", "contains": {"const": 1}}}}, "/properties/a"),
        ({"type": "object", "properties": {}, "required": ["z"]}, "'z'"),
        ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, "beside anyOf"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "allOf"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 2}, "pattern"),
        ({"not": {"type": "string"}}, "not is not supported"),
        ({"type": "object", "required": ["a"]}, "'a'"),
        ({"enum": ["a", "bbb"], "minLength": 2}, "minLength beside enum"),
        ({"type": "array", "items": {"const": 1, "maximum": 0}}, "/items: maximum beside const"),
        ({"type": "string", "enum": [1, "a"]}, "enum has a value that is not of its type"),
        ({"type": ["integer", "null"], "const": True}, "const has a value that is not of its type"),
        ({"const": "a", "enum": ["a", "b"]}, "enum beside const"),
        ({"minLength": 3}, "minLength without type"),
        ({"type": "object", "properties": {"a": {"minimum": 3, "description": "x"}}}, "minimum without type"),
        ({"minItems": 2, "patternProperties": {"a": {}}}, "minItems, patternProperties without type"),
        *(({"type": "string", "pattern": f"^a{each}+$"}, "which JSON escapes") for each in QUOTED),
        ({"type": "object", "patternProperties": {'a"b': {}}}, "which JSON escapes"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": '"'}}}, "/properties/a: pattern with"),
        ({"propertyNames": {"maxLength": 2, "type": "string"}, "additionalProperties": False}, "beside propertyNames"),
        ({"type": "array", "unevaluatedItems": {"not": {"type": "string"}}}, "/unevaluatedItems: not"),
        ({"$ref": "#"}, "ever ends"),
        ({"$defs": {"n": NODE}, "$ref": "#/$defs/n"}, "ever ends"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "ever ends"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "ever ends"),
    ],
)
def test_a_schema_of_which_something_would_be_left_out_is_refused(
    schema: dict[str, Any], named: str, grammars: Grammars
) -> None:
    with pytest.raises(GrammarRefused, match=named):
        of(grammars.compile(Constraint(KIND.JSON_SCHEMA, json.dumps(schema)), ""))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "enum": ["a", "b"], "description": "x"},
        {"type": ["number", "null"], "enum": [1, 1.5, None]},
        {"type": "integer", "const": 3.0},
        {"type": "string", "pattern": r"""^[^"\\]*["a][\s\S]\d\.\u0041\x2d$"""},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"items": {"type": "integer"}, "minItems": 2},
        {"type": ["string", "integer"], "minLength": 2, "maximum": 3},
        {"type": "object", "properties": {"not": {}, "required": {"type": "boolean"}}, "required": ["not"]},
        {},
        {"$defs": {"n": NODE | {"required": []}}, "$ref": "#/$defs/n"},
        {"$defs": {"n": {"anyOf": [NODE, {"type": "null"}]}}, "$ref": "#/$defs/n"},
        {"type": "array", "items": {"$ref": "#"}},
        {"oneOf": [{"type": "integer"}, {"type": "null"}], "discriminator": {"propertyName": "kind"}, "example": 3},
    ],
)
def test_a_schema_that_is_kept_whole_is_served(schema: dict[str, Any], grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.JSON_SCHEMA, json.dumps(schema)), ""))


@pytest.mark.parametrize("text", ['root ::= root "a"', "root ::= s\ns ::= s s"])
def test_rules_that_lead_nowhere_are_refused(text: str, grammars: Grammars) -> None:
    with pytest.raises(GrammarRefused, match="no answer"):
        of(grammars.compile(Constraint(KIND.GRAMMAR, text), ""))


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" root',
        'root ::= "a" b | "c" root\nb ::= "b" c{1,3}\nc ::= "c" b',
        'root ::= ("a" root)+ [a-z]*',
    ],
)
def test_a_grammar_of_which_no_answer_ends_is_refused(text: str, grammars: Grammars) -> None:
    with pytest.raises(GrammarRefused, match="no answer ever ends"):
        of(grammars.compile(Constraint(KIND.GRAMMAR, text), ""))


@pytest.mark.parametrize(
    "text", ['root ::= "a" root | "b"', 'root ::= "a" b{0,3}\nb ::= "b" b', 'root ::= ("a" root)* [a-z]']
)
def test_a_grammar_of_which_some_answer_ends_is_served(text: str, grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.GRAMMAR, text), ""))


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (KIND.CHOICE, ["whole", "\ud83d half"]),
        (KIND.JSON_SCHEMA, {"enum": ["\ud83d half"]}),
        (KIND.STRUCTURAL_TAG, {"type": "structural_tag", "format": {"type": "const_string", "value": "\ud83d half"}}),
    ],
)
def test_half_a_character_is_refused_by_name(kind: ConstraintKind, form: Any, grammars: Grammars) -> None:
    with pytest.raises(GrammarRefused, match="ud83d is a lone surrogate"):
        of(grammars.compile(Constraint(kind, json.dumps(form)), ""))


def test_a_grammar_is_kept_for_its_tenant_alone(grammars: Grammars) -> None:
    constraint = Constraint(KIND.REGEX, "kept")
    first = grammars.compile(constraint, "one")
    of(first)
    assert grammars.compile(constraint, "one") is first
    assert grammars.compile(constraint, "two") is not first


def test_a_text_is_not_kept_for_its_key(grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.REGEX, "x" * 5000), ""))
    assert max(map(len, grammars._kept)) == 32
    assert grammars.compile(Constraint(KIND.REGEX, "a"), "b") is not grammars.compile(Constraint(KIND.REGEX, "ba"), "")


class Counted(Grammars):
    """Notes whose grammar is asked for, and holds every one until it is let go."""

    def __init__(self) -> None:
        super().__init__(TARGET, VOCAB, [END])
        self.asked: list[str] = []
        self.allowed: dict[str, float] = {}  # seconds of processor time, by what was asked for
        self.go = threading.Semaphore(0)

    def _ask(self, constraint: Constraint, cpu_s: float, wall_s: float) -> bytes:
        self.asked.append(constraint.text[0])
        self.allowed[constraint.text] = cpu_s
        assert self.go.acquire(timeout=60)
        return super()._ask(constraint, cpu_s, wall_s)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine, and on a busy one too."""
    monkeypatch.setattr(module, "WALL_S", 50.0)
    monkeypatch.setattr(module, "AT_ONCE", AT_ONCE)


def test_who_asks_for_many_waits_behind_who_asks_for_few() -> None:
    counted = Counted()
    many = [counted.compile(Constraint(KIND.REGEX, f"m{n}"), f"many/{n}") for n in range(12)]
    until(lambda: len(counted.asked) == AT_ONCE)
    few = [counted.compile(Constraint(KIND.REGEX, f"f{n}"), f"few/{n}") for n in range(2)]
    one = counted.compile(Constraint(KIND.REGEX, "o"), "one/")
    for place in range(2):  # whose turn it is shows one by one
        counted.go.release()
        until(lambda at=place: len(counted.asked) == AT_ONCE + 1 + at)  # type: ignore[misc]
    assert set(counted.asked[AT_ONCE:]) == {"f", "o"}
    for _ in range(99):
        counted.go.release()
    for future in (*many, *few, one):
        of(future)
    assert counted.allowed["o"] == counted.allowed["m11"] == CPU_S, "no more of theirs wait"
    assert counted.allowed["m8"] == counted.allowed["f0"] == CROWDED_S
    assert not counted._lines
    until(lambda: not counted._in_work)


def test_a_full_line_is_no_fault_of_a_grammar() -> None:
    counted = Counted()
    made = [counted.compile(Constraint(KIND.REGEX, f"m{n}"), f"many/{n % 3}") for n in range(MAX_OF_ONE + 2 * AT_ONCE)]
    with pytest.raises(GrammarFailed) as failed:
        of(made[-1])
    assert failed.value.reason is RefusalReason.BUSY
    other = counted.compile(Constraint(KIND.REGEX, "o"), "other/")
    for _ in made:
        counted.go.release()
    counted.go.release()
    of(other)
    until(lambda: counted._waiting == 0)
    for _ in made:
        counted.go.release()
    of(counted.compile(Constraint(KIND.REGEX, f"m{len(made) - 1}"), "many/0"))


def test_who_asks_a_compiler_that_hangs_is_not_refused_and_the_next_one_gets_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, constraint = Grammars(TARGET, VOCAB, [END]), Constraint(KIND.REGEX, "slow")
    of(mine.compile(Constraint(KIND.REGEX, "first"), ""))
    assert mine._process is not None
    mine._process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(module, "_START_S", 0.2)
    with pytest.raises(GrammarFailed) as failed:
        of(mine.compile(constraint, ""))
    monkeypatch.undo()
    assert failed.value.reason is RefusalReason.INTERNAL
    assert of(mine.compile(constraint, "")).matcher().masks(()).any()


def test_a_child_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, heavy = Grammars(TARGET, VOCAB, [END]), Constraint(*HOSTILE["many optional keys"])
    of(mine.compile(Constraint(KIND.REGEX, "first"), ""))
    assert mine._process is not None
    for name, value in (("WALL_S", 1.0), ("CPU_S", 50.0), ("_START_S", 10.0)):
        monkeypatch.setattr(module, name, value)
    children = Path(f"/proc/{mine._process.pid}/task/{mine._process.pid}/children")
    until(lambda: not children.read_text())
    mine._answers = False
    future = mine.compile(heavy, "")
    until(lambda: mine._answers)  # it has begun
    child = int(children.read_text())
    os.kill(child, signal.SIGSTOP)  # no bound ends it
    with pytest.raises(GrammarFailed) as failed:
        of(future)
    os.kill(child, signal.SIGKILL)
    assert failed.value.reason is RefusalReason.BUSY


@pytest.mark.parametrize("bound", ["WALL_S", "CPU_S"])
def test_what_others_left_no_time_for_may_be_asked_for_again(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, constraint = Grammars(TARGET, VOCAB, [END]), Constraint(KIND.REGEX, "(a{1,40}b){1,40}")
    of(mine.compile(Constraint(KIND.REGEX, "first"), ""))
    monkeypatch.setattr(module, bound, 1e-4)
    with pytest.raises(GrammarFailed if bound == "WALL_S" else GrammarRefused) as refused:
        of(mine.compile(constraint, ""))
    assert bound == "CPU_S" or refused.value.reason is RefusalReason.BUSY  # type: ignore[attr-defined]
    monkeypatch.undo()
    if bound == "WALL_S":
        assert of(mine.compile(constraint, "")).matcher().masks(()).any()
    else:
        assert mine.compile(constraint, "").done(), "it is remembered"


def test_who_has_waited_too_long_is_told_so_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(module, "WALL_S", 0.0)
    made = [counted.compile(Constraint(KIND.REGEX, f"m{n}"), "many/") for n in range(AT_ONCE)]
    until(lambda: len(counted.asked) == AT_ONCE)  # while the process starts nobody is late
    counted._answers = True
    late = [counted.compile(Constraint(KIND.REGEX, f"l{n}"), "many/") for n in range(9)]
    counted.go.release()
    for each in late:
        with pytest.raises(GrammarFailed) as failed:
            of(each)
        assert failed.value.reason is RefusalReason.BUSY
    assert len(counted.asked) == AT_ONCE
    monkeypatch.setattr(module, "WALL_S", 50.0)
    for _ in made:
        counted.go.release()
    of(counted.compile(Constraint(KIND.REGEX, "l0"), "many/"))


def test_what_takes_long_while_more_of_its_tenant_wait_may_be_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, heavy = Counted(), Constraint(KIND.REGEX, "(a{1,40}b){1,40}")
    monkeypatch.setattr(module, "CROWDED_S", 1e-4)
    made = [counted.compile(Constraint(KIND.REGEX, f"m{n}"), "many/") for n in range(AT_ONCE)]
    until(lambda: len(counted.asked) == AT_ONCE)
    first, last = counted.compile(heavy, "many/"), counted.compile(Constraint(KIND.REGEX, "last"), "many/")
    for _ in range(AT_ONCE + 3):
        counted.go.release()
    with pytest.raises(GrammarFailed) as failed:
        of(first)
    assert failed.value.reason is RefusalReason.BUSY
    for each in (*made, last, counted.compile(heavy, "many/")):
        of(each)


def test_a_compiler_that_ended_is_started_again(grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.REGEX, "before"), ""))
    assert grammars._process is not None
    grammars._process.kill()
    grammars._process.wait()
    deadline = time.monotonic() + 30
    while True:  # one that was asked just then is lost with it
        try:
            of(grammars.compile(Constraint(KIND.REGEX, f"after{time.monotonic()}"), ""))
            return
        except GrammarFailed:
            assert time.monotonic() < deadline


def test_who_asked_one_that_ended_meanwhile_is_not_refused_for_good() -> None:
    """Though another has been started by the time it looks."""

    class Replaced(Grammars):
        def _ask(self, constraint: Constraint, cpu_s: float, wall_s: float) -> bytes:
            assert self._process is not None
            before = self._process
            before.send_signal(signal.SIGSTOP)  # it takes the question and does not look at it
            threading.Timer(0.2, before.kill).start()
            try:
                return super()._ask(constraint, cpu_s, wall_s)
            finally:
                before.wait()
                self._started()
                assert self._process is not before

    mine = Replaced(TARGET, VOCAB, [END])
    for _ in range(2):
        with pytest.raises(GrammarFailed) as failed:
            of(mine.compile(Constraint(KIND.REGEX, "x"), ""))
        assert failed.value.reason is RefusalReason.INTERNAL


def test_compilers_that_end_leave_no_descriptor() -> None:
    mine, open_ones = Grammars(TARGET, VOCAB, [END]), set[int]()
    for _ in range(4):
        mine._started()
        assert mine._process is not None
        open_ones.add(len(os.listdir("/proc/self/fd")))
        mine._process.kill()
        mine._process.wait()
    assert len(open_ones) == 1


def test_a_target_without_words_refuses_all(tmp_path: Path) -> None:
    with pytest.raises(GrammarUnsupported, match="no tokenizer"):
        of(Grammars(tmp_path, VOCAB, [END]).compile(Constraint(KIND.REGEX, "a"), ""))
    with pytest.raises(GrammarUnsupported, match="ends an answer"):
        of(Grammars(TARGET, VOCAB, []).compile(Constraint(KIND.REGEX, "a"), ""))
