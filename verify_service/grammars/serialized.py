"""Grammars as xgrammar serializes them: rules with an expression each, expressions as integers.
Pure."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from typing import Any


class Kind(enum.IntEnum):
    """Kind of a serialized expression."""

    BYTES = 0
    CLASS = 1
    STAR = 2
    EMPTY = 3
    RULE = 4
    SEQUENCE = 5
    CHOICES = 6
    REPEAT = 8
    REGEX = 12


class WrittenGrammar:
    """A grammar that can be changed before it is compiled. Rules, [name, body, ...], and
    expressions, (kind, parts), are named by their place."""

    def __init__(self, text: str) -> None:
        self._told: dict[str, Any] = json.loads(text)
        data = self._told["grammar_expr_data"]
        self.expressions: list[tuple[int, list[int]]] = [
            (data[at], data[at + 2 : at + 2 + data[at + 1]])
            for at in self._told["grammar_expr_indptr"]
        ]
        self.rules: list[list[Any]] = self._told["rules"]
        self.root: int = self._told["root_rule_id"]

    def body(self, rule: int) -> tuple[int, list[int]]:
        """The expression of a rule."""
        place: int = self.rules[rule][1]
        return self.expressions[place]

    def add(self, kind: Kind, parts: Sequence[int]) -> int:
        """Adds an expression; returns its place."""
        self.expressions.append((kind, list(parts)))
        return len(self.expressions) - 1

    def add_rule(self, name: str, parts: Sequence[int]) -> int:
        """Adds a rule of one sequence, which looks at nothing behind it; returns its place."""
        body = self.add(Kind.CHOICES, [self.add(Kind.SEQUENCE, parts)])
        self.rules.append([name, body, -1, *self.rules[self.root][3:]])
        return len(self.rules) - 1

    def text(self) -> str:
        """The grammar as xgrammar reads it."""
        data, begins = list[int](), list[int]()
        for kind, parts in self.expressions:
            begins.append(len(data))
            data += [kind, len(parts), *parts]
        made = {"grammar_expr_data": data, "grammar_expr_indptr": begins}
        return json.dumps({**self._told, **made, "root_rule_id": self.root})

    def drop_endless(self) -> None:
        """Removes choices that can never end: every continuation recurses. Raises ValueError if no
        answer is finite."""
        finite = set[int]()

        def finishes(expression: int) -> bool:
            kind, parts = self.expressions[expression]
            if kind == Kind.RULE:
                return parts[0] in finite
            if kind == Kind.REPEAT:
                return not parts[1] or parts[0] in finite
            if kind == Kind.SEQUENCE:
                return all(map(finishes, parts))
            return kind != Kind.CHOICES or any(map(finishes, parts))

        waiting, before = list(range(len(self.rules))), -1
        while before != len(finite):
            before = len(finite)
            waiting.reverse()  # a rule mostly uses rules on one side of it
            finite.update(rule for rule in waiting if finishes(self.rules[rule][1]))
            waiting = [rule for rule in waiting if rule not in finite]
        if self.root not in finite:
            raise ValueError("no answer ever ends as it asks for")
        left = list(self.expressions)
        for place, (kind, parts) in enumerate(self.expressions):
            if kind == Kind.CHOICES:  # without finite choices it cannot be reached
                left[place] = (kind, [part for part in parts if finishes(part)] or parts)
            elif kind == Kind.REPEAT and parts[0] not in finite:
                left[place] = (Kind.EMPTY, [])
        self.expressions = left
