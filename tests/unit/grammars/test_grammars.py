"""Grammars of the tiny target, compiled in children of their own."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dspark.token_bytes import read_token_bytes
from dspark.types import Constraint, ConstraintKind
from verify_service.grammars.grammars import GrammarRefused, Grammars
from verify_service.interface import Grammar

TARGET = Path(__file__).parents[2] / "data" / "pair" / "target"
VOCAB, END = 512, 0
KIND = ConstraintKind


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TARGET, VOCAB, [END])


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return Tokenizer.from_file(str(TARGET / "tokenizer.json"))


def of(future: Future[Grammar]) -> Grammar:
    return future.result(timeout=60)


def fits(grammars: Grammars, tokenizer: Any, constraint: Constraint, text: str) -> bool:
    matcher = of(grammars.compile(constraint, "")).matcher()
    try:
        matcher.accept(tokenizer.encode(text).ids)
    except ValueError:
        return False
    return bool(matcher.masks(())[0, 0] >> END & 1)


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"),
    [
        (KIND.REGEX, "[a-c]+x?", "abcx", "abd"),
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
        (KIND.STRUCTURAL_TAG, '{"type":"structural_tag","format":{"type":"const_string","value":"hi"}}', "hi", "ho"),
    ],
)
def test_answers_fit_their_form(
    kind: ConstraintKind, text: str, good: str, bad: str, grammars: Grammars, tokenizer: Any
) -> None:
    constraint = Constraint(kind, text)
    assert fits(grammars, tokenizer, constraint, good)
    assert not fits(grammars, tokenizer, constraint, bad)


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
    "a loop of rules": (KIND.GRAMMAR, "root ::= " + "(" * 30_000 + "root" + ")" * 30_000),
    "no grammar": (KIND.GRAMMAR, "root ::= missing"),
    "no regex": (KIND.REGEX, "(?=a)b"),
    "no schema": (KIND.JSON_SCHEMA, '{"type":"nonsense"}'),
}


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
        ({"$ref": "#"}, "no answer begins"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no answer begins"),
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
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"items": {"type": "integer"}, "minItems": 2},
        {"type": ["string", "integer"], "minLength": 2, "maximum": 3},
        {"type": "object", "properties": {"not": {}, "required": {"type": "boolean"}}, "required": ["not"]},
        {},
    ],
)
def test_a_schema_that_is_kept_whole_is_served(schema: dict[str, Any], grammars: Grammars) -> None:
    of(grammars.compile(Constraint(KIND.JSON_SCHEMA, json.dumps(schema)), ""))


@pytest.mark.parametrize("text", ['root ::= root "a"', "root ::= s\ns ::= s s"])
def test_rules_that_lead_nowhere_are_refused(text: str, grammars: Grammars) -> None:
    with pytest.raises(GrammarRefused, match="no answer begins"):
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
        except GrammarRefused:
            assert time.monotonic() < deadline


def test_a_target_without_words_refuses_all(tmp_path: Path) -> None:
    with pytest.raises(GrammarRefused, match="no tokenizer"):
        of(Grammars(tmp_path, VOCAB, [END]).compile(Constraint(KIND.REGEX, "a"), ""))
    with pytest.raises(GrammarRefused, match="ends an answer"):
        of(Grammars(TARGET, VOCAB, []).compile(Constraint(KIND.REGEX, "a"), ""))
