"""Rewrites regular expressions for the compiler, to match what both Python and ECMAScript match.
Pure.

Character classes are written out, so that `\\W` excludes word characters beyond ASCII too. Group
names, needless escapes, and anchors at both ends of each alternative are dropped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from string import hexdigits

Ranges = list[tuple[int, int]]

_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a surrogate pair
_CODE = rf"{_PAIR}|\\u\{{[0-9a-fA-F]+\}}|\\u[0-9a-fA-F]{{4}}|\\x[0-9a-fA-F]{{2}}|\\c[A-Za-z]|\\0\d+"
_COUNT = r"\{[0-9]+(?:,[0-9]*)?\}"
_PIECES = re.compile(
    rf"\[\^?(?:\\.|[^\\\]])*\]|\(\?P?<[A-Za-z_]\w*>|{_COUNT}|{_CODE}|\\.|.", re.DOTALL
)
_ITEMS = re.compile(rf"{_CODE}|\\.|.", re.DOTALL)
_CONTROLS = {"n": 10, "r": 13, "t": 9, "v": 11, "f": 12, "0": 0, "b": 8}
_LAST, _CARET = 0x10FFFF, ord("^")
_SOME_READ = "some read it as one character, some as several"
MOST_COUNT = 2**31 - 1  # the compiler takes larger counts modulo 2**32
# of EBNF: texts and classes, comments, counts
_GRAMMAR_PIECES = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\\\]])*\])|#.*|(\{[^}]*\})')
_LONG_CODE = re.compile(r"(?<!\\)(?:\\\\)*(\\x[0-9a-fA-F]{3})")
_ENDS_OF_LINES: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)]
# ASCII only; their complements exclude characters beyond ASCII too.
_DIGIT: Ranges = [(48, 57)]
_WORD: Ranges = [*_DIGIT, (65, 90), (95, 95), (97, 122)]
_SPACE: Ranges = [(9, 13), (32, 32)]
_SHORT = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_MORE: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": str.isalnum,
    "s": lambda letter: letter.isspace() or letter == "\ufeff",
}


def of_whole_text(expression: str) -> str:
    """An expression for the compiler that matches a whole text. Raises ValueError."""
    return "|".join("".join(pieces) for _, pieces, _ in _alternatives(expression))


def of_json_schema(expression: str) -> str:
    """An expression that matches a whole text, from a JSON Schema pattern: an alternative anchored
    at one end only allows any text at the other. Raises ValueError."""
    anything = [_anything()]
    return "|".join(
        "".join(anything * (ends and not begins) + pieces + anything * (begins and not ends))
        for begins, pieces, ends in _alternatives(expression)
    )


def all_but(names: Sequence[str]) -> str:
    """An expression of every text that is none of the names."""
    tails: dict[str, list[str]] = {}
    for name in filter(None, names):
        tails.setdefault(name[0], []).append(name[1:])
    texts = [_write_letter(ord(first)) + all_but(rest) for first, rest in tails.items()]
    others = complement((ord(first), ord(first)) for first in tails)
    texts.append(_write_class(others) + _anything())
    return f"({'|'.join(texts)})" + ("" if "" in names else "?")


def check_grammar(grammar: str) -> None:
    """Raises ValueError for EBNF with counts or codes that the compiler reads its own way."""
    for letters, count in _GRAMMAR_PIECES.findall(grammar):
        _check_count(count)
        if code := _LONG_CODE.search(letters):
            raise ValueError(f"{code[1]} is not supported: {_SOME_READ}")


def anchored(expression: str) -> bool:
    """Whether every alternative is anchored at both ends. Raises ValueError."""
    return all(begins and ends for begins, _, ends in _alternatives(expression))


def learn_classes() -> None:
    """Fills the cache of Unicode classes, for this process and its children."""
    for name in _SHORT:
        _in_any_reading(name)


def _alternatives(expression: str) -> Iterator[tuple[bool, list[str], bool]]:
    """Yields (anchored at its start, pieces, anchored at its end) of each alternative."""
    deep, pieces = 0, list[str]()
    for piece in [*map(_read_piece, _PIECES.findall(expression)), "|"]:
        deep += piece.startswith("(") - (piece == ")")
        if piece != "|" or deep > 0:
            pieces.append(piece)
            continue
        begins = pieces[:1] == ["^"]
        ends = pieces[begins:][-1:] == ["$"]
        yield begins, pieces[begins : len(pieces) - ends], ends
        pieces = []
    if deep:
        raise ValueError("its parentheses are not balanced")


def _read_piece(piece: str) -> str:
    if piece == ".":
        return _write_class(complement(_ENDS_OF_LINES))
    if piece[0] == "[" and len(piece) > 1:
        return _write_class(_read_class(piece[1:-1]))
    if piece[0] == "(" and len(piece) > 1:
        return "("
    if piece[0] == "{":
        _check_count(piece)
    if piece[0] != "\\" or len(piece) == 1:
        return piece
    if piece in (r"\A", r"\Z"):
        return "^" if piece == r"\A" else "$"
    if piece[1] in "dwsDWS":
        return _write_class(_shorthand(piece[1]))
    if (
        len(piece) > 2
        or piece[1] in _CONTROLS.keys() - {"b"}
        or not (piece[1].isalnum() and piece[1].isascii())
    ):
        return _write_letter(_code_of(piece))
    raise ValueError(f"{piece} is not supported")  # the compiler reads some as nobody else does


def _check_count(count: str) -> None:
    if any(int(bound) > MOST_COUNT for bound in re.findall("[0-9]+", count)):
        raise ValueError(f"a repetition of more than {MOST_COUNT} times is not supported")


def _read_class(inner: str) -> Ranges:
    negated = inner.startswith("^")
    items = _ITEMS.findall(inner[negated:])
    if not items:
        raise ValueError("an empty class of characters is not supported")
    found, at = Ranges(), 0
    while at < len(items):
        item = items[at]
        at += 1
        if len(item) == 2 and item[0] == "\\" and item[1] in "dwsDWS":
            name = item[1].lower()
            if negated:  # exclude what either language includes
                found += _in_any_reading(name) if item[1] == name else complement(_SHORT[name])
            else:
                found += _shorthand(item[1])
            continue
        first = last = _code_of(item)
        if items[at : at + 1] == ["-"] and at + 1 < len(items):
            last = _code_of(items[at + 1])
            at += 2
            if last < first:
                raise ValueError(
                    f"a range of characters from {chr(first)!r} to {chr(last)!r} is not supported"
                )
        found.append((first, last))
    if any(f"\\{name}" in items and f"\\{name.upper()}" in items for name in _SHORT):
        found = [(0, _LAST)]
    return complement(found) if negated else found


def _code_of(item: str) -> int:
    """Code point of a character or escape. Raises ValueError."""
    if item[0] != "\\":
        return ord(item)
    if item[1] == "0" and len(item) > 2:
        raise ValueError(f"{item} is not supported: {_SOME_READ}")
    if len(item) == 12:
        return ord(
            item.encode()
            .decode("unicode_escape")
            .encode("utf-16", "surrogatepass")
            .decode("utf-16")
        )
    if len(item) > 2:
        code = ord(item[2]) % 32 if item[1] == "c" else int(item[2:].strip("{}"), 16)
        if code > _LAST:
            raise ValueError(f"{item[:20]} is no character")
        return code
    if item[1] in _CONTROLS:
        return _CONTROLS[item[1]]
    if item[1].isalnum() and item[1].isascii():
        raise ValueError(f"{item} is not supported in a class of characters")
    return ord(item[1])


def _shorthand(name: str) -> Ranges:
    return _SHORT[name] if name.islower() else complement(_in_any_reading(name.lower()))


@functools.cache
def _in_any_reading(name: str) -> Ranges:
    """Characters that are `d`, `w` or `s` in Python or in ECMAScript."""
    held = [code for code in range(128, 0x40000) if _MORE[name](chr(code))]
    begins = [code for place, code in enumerate(held) if not place or held[place - 1] != code - 1]
    ends = [code for place, code in enumerate(held) if held[place + 1 : place + 2] != [code + 1]]
    more: Ranges = [(28, 31)] if name == "s" else []
    return [*_SHORT[name], *more, *zip(begins, ends, strict=True)]


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The characters that are in none of the ranges."""
    made, free = Ranges(), 0
    for low, high in sorted(ranges):
        if low > free:
            made.append((free, low - 1))
        free = max(free, high + 1)
    return [*made, (free, _LAST)] if free <= _LAST else made


def _anything() -> str:
    return _write_class([(0, _LAST)]) + "*"


def _write_class(ranges: Sequence[tuple[int, int]]) -> str:
    if not ranges:
        raise ValueError("a class without characters is not supported")
    # A range that begins with `^` comes last, as the compiler negates a class that begins with it.
    # Those that begin with a hexadecimal digit come first: behind a code, as the compiler writes
    # it, the digit would be one more of the code's own.
    ranges = sorted(
        complement(complement(ranges)),
        key=lambda each: (each[0] == _CARET, chr(each[0]) not in hexdigits),
    )
    if ranges[0][0] == _CARET:  # alone
        high = ranges[0][1]
        if high == _CARET:
            return _write_letter(_CARET)
        ranges = [(_CARET + 1, high), (_CARET, _CARET)]
    written = (
        _write_letter(low) + (f"-{_write_letter(high)}" if high > low else "")
        for low, high in ranges
    )
    return f"[{''.join(written)}]"


def _write_letter(code: int) -> str:
    return f"\\u{{{code:x}}}"
