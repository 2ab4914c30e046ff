"""Corrects serialized grammars before compilation, so that answers are valid text and JSON strings.

Character classes exclude surrogates, and strings of bounded length exclude control characters,
which JSON does not allow. Classes behind a rule get rules of their own, as the compiler's masks are
wrong for some of them. Regular expressions of a schema are compiled like stand-alone ones and
escaped as in JSON. The compiler's own grammar for them inside a schema accepts too much where an
optional part ends in a repetition, `(-a+)?`, and accepts unescaped characters that JSON escapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from verify_service.grammars.expressions import all_but, complement
from verify_service.grammars.schema import rest_of, walk
from verify_service.grammars.serialized import Kind, WrittenGrammar

# Character class of strings of bounded length: all but quotes, backslashes and line ends.
_BOUNDED = [1, 34, 34, 92, 92, 13, 13, 10, 10]
_HALVES = (0xD800, 0xDFFF)
_UNWRITTEN = ((0, 31), (34, 34), (92, 92))  # characters that JSON escapes


def mend(made: WrittenGrammar, of_expression: Callable[[str], WrittenGrammar]) -> None:
    """Corrects a grammar in place. of_expression: makes the grammar of a regular expression.
    Raises ValueError."""
    for place, (kind, parts) in enumerate(list(made.expressions)):
        if kind == Kind.REGEX and parts[0]:  # inside a JSON string
            expression = bytes.fromhex(bytes(parts[2:]).decode()).decode()
            made.expressions[place] = made.body(_adopt(made, of_expression(expression)))
        elif kind in (Kind.CLASS, Kind.STAR):
            out = [_HALVES, *(_UNWRITTEN if parts == _BOUNDED else ())]
            made.expressions[place] = (kind, _without_ranges(parts, out))
        elif kind == Kind.BYTES:
            _refuse_halves(parts)
    _count_characters(made)
    _name_classes_behind_rules(made)


def _count_characters(made: WrittenGrammar) -> None:
    """Lets the compiler count the characters of a repeated class, in place. Else it unrolls them:
    each character takes milliseconds and its own mask. It counts where the class is written by what
    it excludes, and where what follows stands in the same sequence and begins with none of it."""
    for kind, parts in list(made.expressions):
        if kind == Kind.REPEAT and (repeated := _only(made, parts[0])):
            kind, ends = made.expressions[repeated[0]]
            if kind == Kind.CLASS and len(repeated) == 1 and not ends[0]:
                ranges = complement(zip(ends[1::2], ends[2::2], strict=True))
                others = [1, *(end for each in ranges for end in each)]
                made.expressions[repeated[0]] = (kind, others)
    for place, (kind, parts) in enumerate(made.expressions):
        if kind == Kind.SEQUENCE:
            whole = [each for part in parts for each in _spliced(made, part)]
            made.expressions[place] = (kind, whole)


def _only(made: WrittenGrammar, rule: int) -> list[int]:
    """The parts of a rule of one sequence; empty for others."""
    kind, parts = made.body(rule)
    if kind == Kind.CHOICES and len(parts) == 1:
        kind, parts = made.expressions[parts[0]]
    return parts if kind == Kind.SEQUENCE else []


def _spliced(made: WrittenGrammar, part: int) -> list[int]:
    """The parts of a rule that ends in a repetition, in place of a reference to it."""
    kind, parts = made.expressions[part]
    inner = _only(made, parts[0]) if kind == Kind.RULE else []
    return inner if inner and made.expressions[inner[-1]][0] == Kind.REPEAT else [part]


def _name_classes_behind_rules(made: WrittenGrammar) -> None:
    """Makes a rule, in place, of each class behind a rule, repeated or not, that has characters of
    three bytes. Else masks of xgrammar 0.2.9, which look from a rule at what follows, allow tokens
    that leave the form."""
    behind = set[int]()
    for parts in [parts for kind, parts in made.expressions if kind == Kind.SEQUENCE]:
        kinds = [made.expressions[part][0] in (Kind.RULE, Kind.REPEAT) for part in parts]
        behind.update(parts[kinds.index(True) :] if any(kinds) else ())
    for place in sorted(behind):
        kind, parts = made.expressions[place]
        if kind in (Kind.CLASS, Kind.STAR) and (parts[0] or max(parts[1:], default=0) > 0x7FF):
            rule = made.add_rule(f"class {place}", [made.add(Kind(kind), parts)])
            made.expressions[place] = (Kind.RULE, [rule])


def coded(schema: Any) -> Any:
    """Encodes regular expressions of a schema in hex, in place, so that the compiler keeps them.
    Keys beside named ones become one: every text but the names. Escapes are in none of its texts,
    as an escaped key could equal one of the schema."""
    for _, part in walk(schema):
        if "pattern" in part:
            part["pattern"] = _in_hex(part["pattern"])
        patterns = part.get("patternProperties", {})
        rest = rest_of(part)
        if rest is not False and part.get("properties"):
            plain = [name for name in part["properties"] if _plain(name)]
            patterns = {**patterns, f"^{all_but(plain)}$": rest}
            part.pop("unevaluatedProperties", None)
            part["additionalProperties"] = False
        if patterns:
            part["patternProperties"] = {_in_hex(name): value for name, value in patterns.items()}
    return schema


def _plain(name: str) -> bool:
    """Whether JSON escapes nothing of a text."""
    return json.dumps(name, ensure_ascii=False) == f'"{name}"'


def _in_hex(expression: str) -> str:
    return "x" + expression.encode().hex()


def _adopt(made: WrittenGrammar, part: WrittenGrammar) -> int:
    """Adds the grammar of an expression inside a JSON string; returns its root rule."""
    rules, at = len(made.rules), len(made.expressions)
    for kind, parts in part.expressions:
        if kind in (Kind.RULE, Kind.REPEAT):
            parts = [parts[0] + rules, *parts[1:]]
        elif kind in (Kind.SEQUENCE, Kind.CHOICES):
            parts = [each + at for each in parts]
        elif kind == Kind.CLASS and parts == [0, parts[1], parts[1]] and parts[1] < 128:
            kind, parts = Kind.BYTES, _escaped_bytes(parts[1:2])
        elif kind in (Kind.CLASS, Kind.STAR):
            parts = _without_ranges(parts, [_HALVES, *_UNWRITTEN])
        elif kind == Kind.BYTES:
            _refuse_halves(parts)
            parts = _escaped_bytes(parts)
        elif kind != Kind.EMPTY:
            raise ValueError("pattern with what looks ahead or behind is not supported")
        made.expressions.append((kind, parts))
    made.rules += [[f"{name} of {rules}", body + at, *rest] for name, body, *rest in part.rules]
    return part.root + rules


def _without_ranges(parts: Sequence[int], out: Iterable[tuple[int, int]]) -> list[int]:
    """Removes ranges from a character class: [negated, first, last, ...]. Raises ValueError if
    nothing is left."""
    negated, *ends = parts
    ranges = list(zip(ends[::2], ends[1::2], strict=True))
    ranges = [*ranges, *out] if negated else complement([*complement(ranges), *out])
    if not ranges:
        raise ValueError(
            "pattern with characters that JSON escapes alone in a class is not supported"
        )
    return [negated, *(end for each in ranges for end in each)]


def _refuse_halves(parts: Sequence[int]) -> None:
    """Raises ValueError for the bytes of a lone surrogate. A whole character may be split over
    several expressions."""
    if re.search(rb"\xed[\xa0-\xbf]", bytes(byte % 256 for byte in parts)):
        raise ValueError("a lone surrogate, half of a character, is in no answer")


def _escaped_bytes(parts: Sequence[int]) -> list[int]:
    """The bytes of a text as JSON escapes them in a string."""
    text = bytes(byte % 256 for byte in parts).decode()
    return list(json.dumps(text, ensure_ascii=False)[1:-1].encode())
