"""What answers may be: every one that ends is in its form, and what cannot be kept is refused."""

import functools
import json
import re
from typing import Any

import pytest

from dspark.types import Constraint, ConstraintKind
from tests.unit.grammars.fitting import compiler, fits, in_tag, of, refused, tagged
from verify_service.grammars.compiling import checked, compiled
from verify_service.grammars.grammars import Grammars
from verify_service.grammars.matcher import GrammarMatcher

KIND = ConstraintKind
BYTES = [bytes([byte]) for byte in range(256)]
UUID = '"2d1f0a6c-0b1e-4c3d-8e5f-6a7b8c9d0e1f"'
NODE = {"type": "object", "properties": {"c": {"$ref": "#/$defs/n"}}, "required": ["c"]}
CIRCLE = "ever ends|Circular"  # from 0.2.9 on the compiler finds some of them itself


def text(**said: Any) -> str:
    return json.dumps({"type": "string", **said})


SHORT = in_tag(type="json_schema", json_schema={"type": "string", "maxLength": 2})
CAT, DOG = ({"properties": {"is": {"const": name}}, "required": ["is"]} for name in ("cat", "dog"))
OBJECT, EITHER = {"type": "object"}, [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}]
PETS = {"$defs": {"cat": CAT, "dog": DOG}, "oneOf": EITHER}
CATS = {"$defs": {"cat": OBJECT | CAT, "dog": OBJECT | DOG}, **OBJECT, "anyOf": EITHER}
PART = {"type": "object", "properties": {"m": {}}, "required": ["m"]}
BOTH = {
    "$defs": {"n": {"properties": {"n": {"type": "integer"}}, "required": ["n"]}},
    "allOf": [{"$ref": "#/$defs/n"}, PART],
}
KEYS = {
    "$defs": {"k": {"enum": ["a", "b"]}},
    "propertyNames": {"$ref": "#/$defs/k"},
    "additionalProperties": {},
}
MORE = {"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
QUOTED, BROKEN = (MORE | {"properties": {f"a{mark}b": {"type": "integer"}}} for mark in '"\n')
TUPLE = {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "minItems": 2}
ZOD_EMAIL = (
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]"
    r"@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
)
ZOD_DURATION = (
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?"
    r"(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
)
NAMED = '{"properties":{"é":{"type":"integer"},"è":{}},"additionalProperties":{"type":"string"}}'
HUNDRED = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(100)}}

# a form, an answer in it, and one that is not
FORMS = [
    (KIND.REGEX, "[a-c]+x?", "abcx", "abd"),
    (KIND.REGEX, r"^(?P<a>a)$|^(?<b>b\ \@)$", "b @", "ab"),
    (KIND.REGEX, r"[\^z]{2}[^\^-b]", "^zc", "^bc"),
    (KIND.REGEX, r"[\^-b][\^]", "a^", "ca"),
    (KIND.REGEX, r"\Aa[\W_]\Z", "a_", "aé"),
    (KIND.REGEX, r"[^\w\s]\D[\s\S]", "!é\u3000", "é"),
    (KIND.REGEX, r"\S\d", "é1", "\u00a01"),
    (KIND.REGEX, r"\ud83d\ude42[\ud83d\ude42-\ud83d\ude44]", "🙂🙃", "🙂a"),
    (KIND.REGEX, r"a.{1,3}[.]\.", "a\\é..", "a\n.."),
    (KIND.REGEX, r"[^x].", "\nb", "\n\n"),
    (KIND.STRUCTURAL_TAG, tagged(r"[^x].[.]"), "\nb.", "\n\n."),
    (KIND.GRAMMAR, 'root ::= "(" root ")" | "x"', "((x))", "((x)"),
    (KIND.CHOICE, json.dumps(['say "ü"\n', "no"]), 'say "ü"\n', "yes"),
    (KIND.CHOICE, json.dumps(["🙂 \x7f\u2028", "no"]), "🙂 \x7f\u2028", "🙃"),
    (KIND.JSON_OBJECT, "", '{"a": [1, null]}', "[1]"),
    (KIND.REGEX, r"[^\W_]+", "ab", "é"),
    (KIND.REGEX, r"[^\D]", "1", "١"),
    (KIND.REGEX, "[À-ÿA-Z]", "A", "\u0ffa"),
    (KIND.REGEX, r"[\x7f0][^ -/]", "0\x1f", "\x7f "),
    (KIND.STRUCTURAL_TAG, SHORT, '"ab"', '"\t"'),
    (KIND.STRUCTURAL_TAG, in_tag(type="const_string", value="hi"), "hi", "ho"),
    # a code of two digits is a character
    (KIND.GRAMMAR, r'root ::= "\\x24a\x24" [\x41-\x43] # \x24a', r"\x24a$B", "$a$B"),
]
SCHEMAS = [
    (text(pattern="^a|b$"), '"a{b}"', '"ca"'),
    (text(pattern=r"^[a-z\]]+$", maxLength=2), '"a]"', '""'),
    (text(pattern=r"^\w*$", minLength=2), '"ab"', '"a"'),
    (text(pattern="^[a-z]+$", minLength=1, maxLength=2), '"ab"', '"abc"'),
    (text(pattern=r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"), '"-0.5"', '"-."'),
    (text(format="email", minLength=1), '"a@b.cd"', '"a"'),
    (text(format="email", pattern=ZOD_EMAIL), '"a.b@c.de"', '"a..b@c.de"'),
    (text(format="duration", pattern=ZOD_DURATION), '"P1Y2DT3H0.5S"', '"P1YT"'),
    (text(format="duration", pattern=ZOD_DURATION), '"PT9M"', '"P"'),
    (text(anyOf=[{"format": "ipv4"}, {"format": "ipv6"}]), '"::1"', '"1"'),
    (text(format="time", pattern=r"^\d\d:\d\d$|^$"), '"10:59"', '"10:59:59Z"'),
    (text(pattern=r"^[A-Z]{2}\d?$", minLength=1), '"AB"', '""'),
    (text(format="uri", maxLength=94), '"a://b:80/cdef"', '"a://b/cdefg"'),
    (text(format="uri", maxLength=94), '"a://b/cdef"', '"a://b:/"'),
    (text(format="uuid4"), UUID, UUID.replace("-4", "-3")),
    (text(format="uuid4", enum=["a"]), '"a"', UUID),
    (text(format="date", const="a"), '"a"', '"2000-01-01"'),
    ('{"type":"object","propertyNames":{"minLength":2}}', '{"ab": 1}', '{"a": 1}'),
    (text(pattern="aa"), '"aa"', '"baa"'),
    ('{"type":"object","patternProperties":{"^x-":{}}}', '{"x-y": 1}', '{"y": 1}'),
    (json.dumps({"enum": ["🙂"]}), '"🙂"', '"🙃"'),
    ('{"items":{"enum":[0.1,-1e-7,1.0]}}', "[0.1, -1e-07, 1]", "[0.10000000000000001]"),
    ('{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}', '{"n": 3}', "{}"),
    ('{"type":"string","minLength":2,"maxLength":3}', '"äß"', '"ä"'),
    ('{"type":"string","maxLength":3}', '"a b"', '"a\tb"'),
    ('{"type":["string","null"],"minLength":1}', '"ab"', '"\x01"'),
    ('{"type":["string","null"],"minLength":1}', "null", '""'),
    (text(nullable=True), "null", "1"),
    (text(nullable=False), '"a"', "null"),
    ('{"$ref":"#/$defs/a","$defs":{"a":{"type":"string","maxLength":2}}}', '"ß"', '"\t"'),
    (text(pattern="^1(-a+)?$"), '"1-aa"', '"1aa"'),
    (text(pattern=r"^((.){0,2}){0,1}((a|a)|(?:a){1,2})$"), '"abaa"', '"abaaa"'),
    (text(pattern="^.$"), '"é"', r'"\""'),
    (text(pattern=r"^[\t-z]$"), '"a"', '"\t"'),
    (text(pattern="^[-a]$"), '"-"', '"b"'),
    (text(format="date"), '"2024-02-29"', '"2023-02-29"'),
    (text(format="date-time"), '"2023-04-30T10:59:59.5Z"', '"2023-04-31T10:59:59Z"'),
    (text(format="time"), '"10:59:59+02:00"', '"10:59:60Z"'),
    (text(format="ipv4"), '"10.0.99.255"', '"10.0.09.255"'),
    (text(format="ipv6"), '"1:2:3:4::7:8"', '"::1.2.3.04"'),
    (text(format="json-pointer"), '"/a~0/"', '"/a\x01"'),
    (text(format="uri-template"), '"/a{?b,c*}"', '"/a{!b}"'),
    (json.dumps(PETS), '{"is": "cat"}', '{"is": "cow"}'),
    (json.dumps({"oneOf": [PART, {"type": "null"}]}), "null", '{"is": "dog"}'),
    (json.dumps(CATS), '{"is": "cat"}', '{"is": "cow"}'),
    (text(const="cat", enum=["cat"]), '"cat"', '"dog"'),
    ('{"type":"object"}', '{"a": {"b": [1]}}', "[1]"),
    ('{"type":["array","null"],"maxItems":2}', '["a", {}]', "[1, 2, 3]"),
    (
        '{"properties":{"o":{"type":"object","maxProperties":1}}}',
        '{"o": {"a": 1}}',
        '{"o": {"a": 1, "b": 2}}',
    ),
    ('{"type":"object","properties":{}}', "{}", '{"a": 1}'),
    (json.dumps(BOTH), '{"n": 1, "m": 2}', '{"n": 1}'),
    (json.dumps(BOTH | {"unevaluatedProperties": False}), '{"n": 1, "m": 2}', '{"m": 2}'),
    (json.dumps(KEYS), '{"b": null}', '{"c": null}'),
    (json.dumps(QUOTED), r'{"a\"b": 1, "ab": "c"}', '{"a"bc": "d"}'),
    (json.dumps(BROKEN), r'{"a\nb": 1, "a": "b"}', '{"a\nbc": "d"}'),
    ('{"propertyNames":{"type":"string"},"additionalProperties":{}}', '{"c": 1}', "[]"),
    ('{"propertyNames":{"pattern":"^a$"},"additionalProperties":{}}', '{"a": 1}', '{"b": 1}'),
    (
        '{"type":"object","propertyNames":{"type":"string","format":"date"}}',
        '{"2000-01-01": 1}',
        '{"b": 1}',
    ),
    (json.dumps(MORE), '{"ab": 1, "abc": "x"}', r'{"ab": 1, "a\u0062": "x"}'),
    (NAMED, '{"é": 1, "b": "x"}', '{"é": "x"}'),
    (NAMED, '{"bé": "x"}', '{"b": 1}'),
    ('{"type":"object","propertyNames":{"format":"date"}}', '{"2000-01-01": 1}', '{"b": 1}'),
    ('{"propertyNames":true,"additionalProperties":{}}', '{"b": 1}', '{"b"}'),
    ('{"type":"array","items":[true,{"type":"null"}]}', "[1, null]", "[1, 2]"),
    ('{"type":"string","maxLength":2000}', '"ab"', "1"),
    ('{"$ref":"#/$defs/a~1b%3C~0","$defs":{"a/b<~":{"type":"null"}}}', "null", "1"),
    ('{"prefixItems":[{"const":1},{"$ref":"#/prefixItems/0"}],"items":false}', "[1, 1]", "[1, 2]"),
    ('{"items":{"$ref":"#/x/A%3CB%3E"},"x":{"A<B>":{"const":1}}}', "[1]", "[2]"),
    # places that rewriting moves
    ('{"items":[{"const":1},{"$ref":"#/items/0"}],"minItems":2,"maxItems":2}', "[1,1]", "[1,2]"),
    (
        '{"prefixItems":[{"oneOf":[{"type":"integer"},{"type":"null"}]},{"$ref":"#/prefixItems/0/oneOf/0"}],'
        '"minItems":2,"items":false}',
        "[null,1]",
        "[1,null]",
    ),
    (
        '{"patternProperties":{"^x-":{"type":"null"}},"required":["b"],'
        '"properties":{"b":{"$ref":"#/patternProperties/%5Ex-"}}}',
        '{"b":null}',
        '{"b":1}',
    ),
    ('{"type":"string","maxLength":9007199254740991}', '"ab"', "1"),
    ('{"propertyNames":{"maxLength":4294967297}}', '{"ab":1}', "1"),
    ('{"type":"object","maxProperties":4294967296}', '{"ab":1}', "1"),
    ('{"type":"string","format":"uri","minLength":1,"maxLength":2083}', '"https://a.b/c"', '"a"'),
    (json.dumps(HUNDRED), '{"p7": "x"}', '{"p7": 1}'),
    (json.dumps(MORE), '{"": "x"}', r'{"\u0061b": "x"}'),
    (json.dumps(MORE), '{"ü": "x"}', '{"ab": "x"}'),
    ('{"type":"integer","allOf":[]}', "1", '"a"'),
    ('{"$id":"x:y","items":{"$ref":"#/$defs/a"},"$defs":{"a":{"const":1}}}', "[1]", "[2]"),
    (json.dumps(TUPLE), '["a", 1]', '["a", 1, 2]'),
    (json.dumps(TUPLE | {"additionalItems": {"type": "null"}}), '["a", 1, null]', '["a", 1, 2]'),
]


# Pieces of a pattern, which JSON writes in its own way.
PIECES = {
    '"': '"', r"\"": '"', r"\\": "\\", r"\n": "\n", "\n": "\n", r"\x22": '"', r"\u{22}": '"',
    '["]': '"', r"[\b]": "\b",
}  # fmt: skip
SCHEMAS += [
    (text(pattern=f"^a(?:{piece}{more})c$"), json.dumps(f"a{said}c"), f'"a{said}c"')
    for piece, said in PIECES.items()
    for more in ("", "+", "|b")
]


@pytest.mark.parametrize(
    ("kind", "text", "good", "bad"), [*FORMS, *((KIND.JSON_SCHEMA, *each) for each in SCHEMAS)]
)
def test_answers_fit_their_form(
    kind: ConstraintKind, text: str, good: str, bad: str, grammars: Grammars, tokenizer: Any
) -> None:
    constraint = Constraint(kind, text)
    assert fits(grammars, tokenizer, constraint, good)
    assert not fits(grammars, tokenizer, constraint, bad)


def test_a_choice_is_written_letter_by_letter() -> None:
    texts = ['🙂\x7f"\\', "\u2028\x00"]
    made = compiled(compiler([*BYTES, b""]), Constraint(KIND.CHOICE, json.dumps(texts)))
    for text in texts:
        matcher = GrammarMatcher(made, [256])
        matcher.accept([*text.encode(), 256])
        assert not len(matcher.masks(())), "it is over"


def test_no_answer_has_half_a_character_or_a_token_beyond_the_vocabulary(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for form in (Constraint(KIND.JSON_SCHEMA, text()), Constraint(KIND.REGEX, '"[^a]|"[b-\uffff]')):
        matcher = GrammarMatcher(checked(compiled(compiler(BYTES, size=257), form)), [256])
        matcher.accept(b'"\xed')
        assert not any(
            matcher.masks(())[0, byte // 32] >> byte % 32 & 1 for byte in range(0xA0, 0xC0)
        )
    assert "out of range" not in capfd.readouterr().err


# Schemas of which something would be left out, and what is said of it.
LEFT_OUT: list[tuple[Any, str]] = [
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
    ({"properties": {"a": {"type": "array", "contains": {"const": 1}}}}, "/properties/a"),
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
    ({"const": 1, "enum": [True]}, "enum beside const"),
    ({"type": "object", "minProperties": 2}, "minProperties above 1"),
    ({"type": "object", "unevaluatedProperties": {}, "minProperties": 2}, "minProperties above 1"),
    (
        {"type": "object", "propertyNames": {"format": "date"}, "minProperties": 2},
        "minProperties above 1",
    ),
    ({"patternProperties": {"a": {}}, "unevaluatedProperties": {"type": "null"}}, "several kinds"),
    ({"type": [], "nullable": True}, "nullable without type"),
    ({"minLength": 3}, "minLength without type"),
    ({"properties": {"a": {"minimum": 3, "description": "x"}}}, "minimum without type"),
    ({"minItems": 2, "patternProperties": {"a": {}}}, "minItems, patternProperties without type"),
    ({"type": "string", "pattern": r"^[\n\t]$"}, "JSON escapes alone"),
    ({"type": "string", "pattern": r"^\ud83d$"}, "half of a character"),
    ({"type": "string", "format": "date", "pattern": "^2"}, "pattern beside format"),
    ({"format": "date"}, "format without type"),
    ({"type": "string", "format": "iri"}, "format 'iri'"),
    ({"properties": {"a": {"if": False, "else": {}}}}, "/properties/a: if is not supported"),
    ({"nullable": True, "$ref": "#/$defs/a"}, "nullable without type"),
    ({"anyOf": []}, "anyOf must not be empty"),
    ({"type": []}, "type must not be empty"),
    ({"type": "number", "minimum": 1e-7, "exclusiveMaximum": 2e-7}, "no number of six decimals"),
    ({"const": {"a": [2**63]}}, "const has a number beyond"),
    ({"type": "object", "propertyNames": {"minLength": 2**32 + 2}}, "minLength above 2147483647"),
    ({"type": "string", "oneOf": [{"const": "a"}, {"const": 1}]}, "type beside anyOf"),
    ({"properties": {"a": {"$id": "x:y", "items": {"$ref": "#/b"}}}}, "/a: .id around a .ref"),
    (
        {"properties": {"aa": {}}, "propertyNames": {"maxLength": 1}},
        "properties beside propertyNames",
    ),
    ({"type": "object", "propertyNames": {"type": "integer"}}, "propertyNames of another type"),
    ({"properties": {"aa": {}}, "patternProperties": {"a": {}}}, "fits 'aa'"),
    ({"type": "object", "patternProperties": {"^a": {}, "a$": {"type": "null"}}}, "several kinds"),
    (
        {"properties": {"a": {"$ref": "#/x/y~1z"}}, "x": {"y/z": {"uniqueItems": True}}},
        r"/\$defs/x-y-1z: uniqueItems",
    ),
    ({"allOf": [{"properties": {"a": PART}}, {"properties": {"a": {"type": "null"}}}]}, "allOf"),
    ({"properties": {"x": {"allOf": [{"$ref": "#"}, PART]}}}, "allOf of several parts"),
    (functools.reduce(lambda inner, _: {"items": inner}, range(900), {}), "nested too deeply"),
    ({"type": "object", "properties": []}, "properties must be an object"),
    ({"type": "integer", "minimum": 10**400}, "#: minimum must be a number within"),
    ({"type": "number", "maximum": 1e400}, "#: maximum must be a number within"),
    ({"type": "string", "minLength": True}, "minLength and maxLength must be whole numbers"),
    ({"items": {"type": "array", "minItems": 3, "maxItems": 2}}, "/items: minItems is above"),
    ({"allOf": [{"type": "object", "minProperties": 1}, {"type": "object"}]}, "of several parts"),
    ({"type": "object", "additionalProperties": {}, "minProperties": 2}, "minProperties above 1"),
    ({"type": "object", "properties": {"a": {"enum": {}}}}, "/properties/a: enum must be a list"),
    ({"type": "string", "format": {}}, "format must be a text"),
    ({"type": "array", "items": [{"type": 0}]}, "/items/0: type must be a name"),
    ({"type": "object", "required": [1]}, "required must be a list of names"),
    ({"type": {}}, "type must be a name"),
    (
        {"propertyNames": {"maxLength": 2, "type": "string"}, "additionalProperties": False},
        "beside propertyNames",
    ),
    ({"type": "array", "unevaluatedItems": {"not": {"type": "string"}}}, "/unevaluatedItems: not"),
    ({"$ref": "#"}, CIRCLE),
    ({"$defs": {"n": NODE}, "$ref": "#/$defs/n"}, "ever ends"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "ever ends"),
    ({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}, CIRCLE),
]
HALF = "\ud83d half"
HALVES = [
    (KIND.CHOICE, json.dumps(["whole", HALF])),
    (KIND.JSON_SCHEMA, json.dumps({"enum": [HALF]})),
    (KIND.STRUCTURAL_TAG, in_tag(type="const_string", value=HALF)),
]
LEADING_NOWHERE = ['root ::= root "a"', "root ::= s\ns ::= s s"]
NEVER_ENDING = [
    'root ::= "a" root',
    'root ::= "a" b | "c" root\nb ::= "b" c{1,3}\nc ::= "c" b',
    'root ::= ("a" root)+ [a-z]*',
]
READ_OTHERWISE = r"""
    [] [^]a] \01 [\01] (a a) [b-a] [a\B] [^\s\S] \bfoo (?i)a a\x4 \a \e \p{L} (a)\1
    a{4294967298} a{1,4294967298}
"""
COUNTED = 'root ::= "a"{%d} "{4294967296}" # {4294967296}'
CODES = [r'root ::= "\x24a"', r"root ::= [\\\x24a]+"]
REFUSED = [
    *((KIND.JSON_SCHEMA, json.dumps(schema), named) for schema, named in LEFT_OUT),
    *((KIND.REGEX, text, "supported|balanced") for text in READ_OTHERWISE.split()),
    *((KIND.GRAMMAR, text, r"^\\x24a is not supported: some read it as one") for text in CODES),
    *((KIND.GRAMMAR, text, "no answer") for text in LEADING_NOWHERE),
    *((KIND.GRAMMAR, text, "no answer ever ends") for text in NEVER_ENDING),
    *((*half, "ud83d is a lone surrogate") for half in HALVES),
    (KIND.GRAMMAR, COUNTED % (2**32 + 3), "a repetition of more than 2147483647"),
]


@pytest.mark.parametrize(("kind", "text", "named"), REFUSED)
def test_what_cannot_be_kept_whole_or_is_not_read_alike_by_all_is_refused_by_name(
    kind: ConstraintKind, text: str, named: str, grammars: Grammars
) -> None:
    assert re.search(named, refused(grammars.compile(Constraint(kind, text), "")))


WHOLE: list[Any] = [
    {"type": "string", "enum": ["a", "b"], "description": "x"},
    {"type": ["number", "null"], "enum": [1, 1.5, None]},
    {"type": "integer", "const": 3.0},
    {"type": "string", "pattern": r"""^[^"\\]*["a][\s\S]\d\.\u0041\x2d$"""},
    {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"items": {"type": "integer"}, "minItems": 2},
    {"type": ["string", "integer"], "minLength": 2, "maximum": 3},
    {"properties": {"not": {}, "required": {"type": "boolean"}}, "required": ["not"]},
    {},
    {"$defs": {"n": NODE | {"required": []}}, "$ref": "#/$defs/n"},
    {"$defs": {"n": {"anyOf": [NODE, {"type": "null"}]}}, "$ref": "#/$defs/n"},
    {"type": "array", "items": {"$ref": "#"}},
    {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}], "x-order": 3},
    {"$ref": "#/components/n", "components": {"n": {"type": "integer"}}},
    {"type": "object", "patternProperties": {"^[a-z]$": {}}, "properties": {"A": {}}},
    {
        "properties": {"a": {}, "b": {}},
        "required": ["b", "a"],
        "additionalProperties": {},
        "minProperties": 2,
    },
    {
        "oneOf": [{"type": "integer"}, {"type": "null"}],
        "discriminator": {"propertyName": "kind"},
        "example": 3,
    },
]
ENDING = [
    'root ::= "a" root | "b"',
    'root ::= "a" b{0,3}\nb ::= "b" b',
    'root ::= ("a" root)* [a-z]',
    COUNTED % 3,  # a number in a text or a remark is none
]
SERVED = [
    *((KIND.JSON_SCHEMA, json.dumps(schema)) for schema in WHOLE),
    *((KIND.GRAMMAR, text) for text in ENDING),
]


@pytest.mark.parametrize(("kind", "text"), SERVED)
def test_what_is_kept_whole_and_can_end_is_served(
    kind: ConstraintKind, text: str, grammars: Grammars
) -> None:
    of(grammars.compile(Constraint(kind, text), ""))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#/$defs/n"}, "b": {"type": "integer"}}},
        {"additionalProperties": {"$ref": "#/$defs/n"}},
        {
            "type": ["object", "array"],
            "patternProperties": {"^a$": {"$ref": "#/$defs/n"}},
            "items": {},
        },
    ],
)
def test_a_value_that_never_ends_is_not_begun(
    schema: dict[str, Any], grammars: Grammars, tokenizer: Any
) -> None:
    constraint = Constraint(KIND.JSON_SCHEMA, json.dumps({"$defs": {"n": NODE}, **schema}))
    assert fits(grammars, tokenizer, constraint, "{}")
    with pytest.raises(ValueError, match="does not continue"):
        of(grammars.compile(constraint, ""))().accept(tokenizer.encode('{"a": {"c"').ids)
