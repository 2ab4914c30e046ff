"""Estimates how many readings a grammar has of one text: nested repetitions multiply them. Pure.

The matcher keeps a state per reading of the text so far, by the count of each repetition. If the
next byte decides whether a repetition continues, there is one. If not, counts of nested repetitions
multiply, and one token may take seconds. `ways` estimates that product from the grammar alone,
wherever in an answer the repetitions are. The time per token also depends on the vocabulary, so the
ambiguous parts are returned as grammars of their own to be tried.

The input is a grammar as xgrammar serializes it before compilation. Sets of bytes are integers of
256 bits; all bytes of characters beyond ASCII are one set.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from verify_service.grammars.serialized import Kind, WrittenGrammar

MOST = 256
DEEPEST = 20_000  # recursion limit: rules inside rules, three calls each
# largest factor of a bounded repetition; factor of one without bound
COUNTED, ENDLESS = 64, 4
_ALL = (1 << 256) - 1
_BEYOND = _ALL ^ ((1 << 128) - 1)


class _Bytes(NamedTuple):
    """Sets of bytes of an expression."""

    empty: bool = False  # whether it matches the empty text
    first: int = 0  # bytes it may begin with
    on: int = 0  # bytes that may continue it where it could also end
    inner: int = 0  # all of its bytes


class _Readings:
    def __init__(self, written: str) -> None:
        self._written, grammar = written, WrittenGrammar(written)
        self._doubts = dict[tuple[int, ...], None]()  # ambiguous runs of expressions, in order
        self._expressions, self._root = grammar.expressions, grammar.root
        self._bodies = [rule[1] for rule in grammar.rules]
        self._rules = [_Bytes()] * len(self._bodies)
        self._leaves: dict[int, _Bytes] = {}  # by expression
        self._ways: dict[int, int] = {}  # by rule; 0 while it is computed
        order, changed = list(range(len(self._bodies))), True
        while changed:
            changed = False
            order.reverse()  # a rule mostly uses rules on one side of it
            for rule in order:
                found = self._bytes(self._bodies[rule])
                changed |= found != self._rules[rule]
                self._rules[rule] = found

    def ways(self) -> int:
        return self._of_rule(self._root)

    def doubts(self) -> Iterator[str]:
        """The ambiguous parts that `ways` found, each as a serialized grammar of a whole answer."""
        for run in self._doubts:
            part = WrittenGrammar(self._written)
            part.root = part.add_rule("in doubt", run)  # EBNF has no such name
            yield part.text()

    def _bytes(self, expression: int) -> _Bytes:
        if expression in self._leaves:
            return self._leaves[expression]
        kind, parts = self._expressions[expression]
        if kind in (Kind.BYTES, Kind.CLASS, Kind.STAR, Kind.EMPTY):
            return self._leaves.setdefault(expression, _leaf(kind, parts))
        if kind == Kind.RULE:
            return self._rules[parts[0]]
        if kind == Kind.SEQUENCE:
            return self._sequence([self._bytes(part) for part in parts])
        if kind == Kind.CHOICES:
            return self._choices(parts)
        if kind == Kind.REPEAT:
            rule, least, most = parts[:3]
            body = self._rules[rule]
            again = 0 if most == 1 or least == most else body.first
            on = body.inner if most != 1 and _doubtful(body, body.first) else body.on | again
            return _Bytes(body.empty or not least, body.first, on, body.inner)
        return _Bytes(True, _ALL, _ALL, _ALL)  # free text, or counted in tokens

    def _sequence(self, parts: Sequence[_Bytes]) -> _Bytes:
        made = _Bytes(True)
        for part in reversed(parts):
            doubtful = _doubtful(part, made.first)
            first = part.first | (made.first if part.empty else 0)
            inner = part.inner | made.inner
            on = made.on | (part.on | made.first if made.empty else 0)
            made = _Bytes(part.empty and made.empty, first, inner if doubtful else on, inner)
        return made

    def _choices(self, parts: Sequence[int]) -> _Bytes:
        choices = [self._bytes(part) for part in parts]
        seen = alike = 0
        for each in choices:
            alike |= seen & each.first
            seen |= each.first
        empty, on = any(each.empty for each in choices), _union(each.on for each in choices)
        if empty:
            on |= seen
        alikes = [place for place, each in enumerate(choices) if each.first & alike]
        if not _told_apart([self._lead(parts[place]) for place in alikes]):
            on |= _union(choices[place].inner for place in alikes)
        return _Bytes(empty, seen, on, _union(each.inner for each in choices))

    def _lead(self, expression: int, deep: int = 4) -> tuple[int, ...]:
        """Bytes that every match begins with, or some of them."""
        kind, parts = self._expressions[expression]
        if kind == Kind.BYTES:
            return tuple(parts)
        if kind == Kind.RULE and deep:
            return self._lead(self._bodies[parts[0]], deep - 1)
        if kind == Kind.CHOICES and len(parts) == 1:
            return self._lead(parts[0], deep)
        if kind != Kind.SEQUENCE:
            return ()
        made = list[int]()
        for part in parts:
            if self._expressions[part][0] != Kind.BYTES:
                return tuple(made) or self._lead(part, deep)
            made += self._expressions[part][1]
        return tuple(made)

    def _of_rule(self, rule: int) -> int:
        if rule not in self._ways:
            self._ways[rule] = 0
            self._ways[rule] = self._of(self._bodies[rule])
        return self._ways[rule]

    def _of(self, expression: int) -> int:
        """Estimated readings at a time; 0 for a rule inside itself."""
        kind, parts = self._expressions[expression]
        if kind == Kind.RULE:
            return self._of_rule(parts[0])
        if kind == Kind.REPEAT:
            rule, _, most = parts[:3]
            body, once = self._rules[rule], max(self._of_rule(rule), 1)
            if most == 1 or not _doubtful(body, body.first):
                return once
            self._doubts[expression,] = None
            return once * (ENDLESS if most < 0 else min(most, COUNTED))
        if kind not in (Kind.SEQUENCE, Kind.CHOICES):
            return 1
        each = [self._of(part) for part in parts]
        if kind == Kind.SEQUENCE:
            each = list(self._together(parts, each))
        return max([1, *each])

    def _together(self, parts: Sequence[int], each: Sequence[int]) -> Iterator[int]:
        """Readings of each run of parts whose boundaries the next byte does not decide."""
        run, rest = list[int](), _Bytes(True)
        for place, (part, many) in enumerate(zip(reversed(parts), reversed(each), strict=True)):
            known = self._bytes(part)
            if not _doubtful(known, rest.first):
                run = []
            elif run:
                end = len(parts) - place
                self._doubts.pop(tuple(parts[end : end + len(run)]), None)
                self._doubts[tuple(parts[end - 1 : end + len(run)])] = None
            run.append(many)
            yield sum(run) if all(run) or len(run) == 1 else max(sum(run), 1) * ENDLESS
            rest = self._sequence([known, rest])


def _doubtful(part: _Bytes, behind: int) -> bool:
    """Whether a byte may both continue this part and begin what follows (`behind`)."""
    return bool((part.on | (part.first if part.empty else 0)) & behind)


def _told_apart(words: Sequence[tuple[int, ...]]) -> bool:
    """Whether none of the words is a prefix of another."""
    words = sorted(words)
    return all(after[: len(word)] != word for word, after in pairwise(words))


def _leaf(kind: int, parts: Sequence[int]) -> _Bytes:
    if kind == Kind.BYTES:
        each = [1 << byte % 256 for byte in parts]
        return _Bytes(not each, each[0] if each else 0, 0, _union(each))
    said = _class(parts) if kind != Kind.EMPTY else 0
    return _Bytes(kind != Kind.CLASS, said, said if kind == Kind.STAR else 0, said)


def _union(sets: Iterable[int]) -> int:
    return functools.reduce(operator.or_, sets, 0)


def _class(parts: Sequence[int]) -> int:
    """Set of bytes of a character class: [negated, first, last, ...]."""
    said = 0
    for low, high in zip(parts[1::2], parts[2::2], strict=True):
        if low < 128:
            said |= (1 << min(high, 127) + 1) - (1 << low)
        if high >= 128:
            said |= _BEYOND
    return (_ALL ^ said) | _BEYOND if parts[0] else said


def ways(written: str) -> tuple[int, list[str]]:
    """(estimated readings of a text at a time, ambiguous parts; none above MOST). Grammar and parts
    are as xgrammar serializes them."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEPEST)
    try:
        grammar = _Readings(written)
        found = grammar.ways()
        return found, list(grammar.doubts()) if found <= MOST else []
    finally:
        sys.setrecursionlimit(before)
