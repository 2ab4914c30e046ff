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
from verify_service.grammars.schema import walk
from verify_service.grammars.serialized import Kind, expressions_of, put_expressions

# Character class of strings of bounded length: all but quotes, backslashes and line ends.
_BOUNDED = [1, 34, 34, 92, 92, 13, 13, 10, 10]
_HALVES = (0xD800, 0xDFFF)
_UNWRITTEN = ((0, 31), (34, 34), (92, 92))  # characters that JSON escapes


Told = dict[str, Any]


def mend(told: Told, of_expression: Callable[[str], Told]) -> None:
    """Corrects a grammar in place. of_expression: makes the grammar of a regular expression.
    Raises ValueError."""
    made = expressions_of(told)
    for place, (kind, parts) in enumerate(list(made)):
        if kind == Kind.REGEX and parts[0]:  # inside a JSON string
            expression = bytes.fromhex(bytes(parts[2:]).decode()).decode()
            root = _adopt(told, made, of_expression(expression))
            made[place] = made[told["rules"][root][1]]
        elif kind in (Kind.CLASS, Kind.STAR):
            made[place] = (
                kind,
                _without_ranges(parts, [_HALVES, *(_UNWRITTEN if parts == _BOUNDED else ())]),
            )
        elif kind == Kind.BYTES:
            _refuse_halves(parts)
    _count_characters(told["rules"], made)
    _name_classes_behind_rules(told, made)
    put_expressions(told, made)


def _count_characters(rules: list[list[Any]], made: list[tuple[int, list[int]]]) -> None:
    """Lets the compiler count the characters of a repeated class, in place. Else it unrolls them:
    each character takes milliseconds and its own mask. It counts where the class is written by what
    it excludes, and where what follows stands in the same sequence and begins with none of it."""
    for kind, parts in list(made):
        if kind == Kind.REPEAT and (repeated := _only(made, rules[parts[0]][1])):
            kind, ends = made[repeated[0]]
            if kind == Kind.CLASS and len(repeated) == 1 and not ends[0]:
                ranges = complement(zip(ends[1::2], ends[2::2], strict=True))
                made[repeated[0]] = (kind, [1, *(end for each in ranges for end in each)])
    for place, (kind, parts) in enumerate(made):
        if kind == Kind.SEQUENCE:
            made[place] = (kind, [each for part in parts for each in _spliced(rules, made, part)])


def _only(made: Sequence[tuple[int, list[int]]], body: int) -> list[int]:
    """The parts of a rule of one sequence; empty for others."""
    kind, parts = made[body]
    if kind == Kind.CHOICES and len(parts) == 1:
        kind, parts = made[parts[0]]
    return parts if kind == Kind.SEQUENCE else []


def _spliced(
    rules: Sequence[Sequence[Any]], made: Sequence[tuple[int, list[int]]], part: int
) -> list[int]:
    """The parts of a rule that ends in a repetition, in place of a reference to it."""
    kind, parts = made[part]
    inner = _only(made, rules[parts[0]][1]) if kind == Kind.RULE else []
    return inner if inner and made[inner[-1]][0] == Kind.REPEAT else [part]


def _name_classes_behind_rules(told: Told, made: list[tuple[int, list[int]]]) -> None:
    """Makes a rule, in place, of each class behind a rule, repeated or not, that has characters of
    three bytes. Else masks of xgrammar 0.2.9, which look from a rule at what follows, allow tokens
    that leave the form."""
    rules, behind = told["rules"], set[int]()
    plain = [-1, *rules[told["root_rule_id"]][3:]]  # looks at nothing behind it
    for parts in [parts for kind, parts in made if kind == Kind.SEQUENCE]:
        kinds = [made[part][0] in (Kind.RULE, Kind.REPEAT) for part in parts]
        behind.update(parts[kinds.index(True) :] if any(kinds) else ())
    for place in sorted(behind):
        kind, parts = made[place]
        if kind in (Kind.CLASS, Kind.STAR) and (parts[0] or max(parts[1:], default=0) > 0x7FF):
            made[place] = (Kind.RULE, [len(rules)])
            rules.append([f"class {place}", len(made) + 2, *plain])
            made += [(kind, parts), (Kind.SEQUENCE, [len(made)]), (Kind.CHOICES, [len(made) + 1])]


def coded(schema: Any) -> Any:
    """Encodes regular expressions of a schema in hex, in place, so that the compiler keeps them.
    Keys beside named ones become one: every text but the names. Escapes are in none of its texts,
    as an escaped key could equal one of the schema."""
    for _, part in walk(schema):
        if "pattern" in part:
            part["pattern"] = _in_hex(part["pattern"])
        patterns = part.get("patternProperties", {})
        rest = part.get("additionalProperties", part.get("unevaluatedProperties", False))
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


def _adopt(told: Told, made: list[tuple[int, list[int]]], part: Told) -> int:
    """Adds the grammar of an expression inside a JSON string; returns its root rule."""
    rules, at = len(told["rules"]), len(made)
    for kind, parts in expressions_of(part):
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
        made.append((kind, parts))
    told["rules"] += [
        [f"{name} of {rules}", body + at, *rest] for name, body, *rest in part["rules"]
    ]
    root: int = part["root_rule_id"]
    return root + rules


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
