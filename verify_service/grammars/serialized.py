"""Grammars as xgrammar serializes them: rules with an expression each, expressions as integers.
Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
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


def expressions_of(told: dict[str, Any]) -> list[tuple[int, list[int]]]:
    """(kind, parts) of each expression, by its number."""
    data = told["grammar_expr_data"]
    return [(data[at], data[at + 2 : at + 2 + data[at + 1]]) for at in told["grammar_expr_indptr"]]


def put_expressions(told: dict[str, Any], made: Iterable[tuple[int, Sequence[int]]]) -> None:
    """Replaces the expressions of a grammar, in place."""
    data, begins = list[int](), list[int]()
    for kind, parts in made:
        begins.append(len(data))
        data += [kind, len(parts), *parts]
    told |= {"grammar_expr_data": data, "grammar_expr_indptr": begins}


def drop_endless(told: dict[str, Any]) -> None:
    """Removes choices that can never end, in place: every continuation recurses. Raises ValueError
    if no answer is finite."""
    made, bodies = expressions_of(told), [rule[1] for rule in told["rules"]]
    finite = set[int]()

    def finishes(expression: int) -> bool:
        kind, parts = made[expression]
        if kind == Kind.RULE:
            return parts[0] in finite
        if kind == Kind.REPEAT:
            return not parts[1] or parts[0] in finite
        if kind == Kind.SEQUENCE:
            return all(map(finishes, parts))
        return kind != Kind.CHOICES or any(map(finishes, parts))

    waiting, before = list(range(len(bodies))), -1
    while before != len(finite):
        before = len(finite)
        waiting.reverse()  # a rule mostly uses rules on one side of it
        for rule in waiting:
            if finishes(bodies[rule]):
                finite.add(rule)
        waiting = [rule for rule in waiting if rule not in finite]
    if told["root_rule_id"] not in finite:
        raise ValueError("no answer ever ends as it asks for")
    left = list(made)
    for place, (kind, parts) in enumerate(made):
        if kind == Kind.CHOICES:  # without finite choices it cannot be reached
            left[place] = (kind, [part for part in parts if finishes(part)] or parts)
        elif kind == Kind.REPEAT and parts[0] not in finite:
            left[place] = (Kind.EMPTY, [])
    put_expressions(told, left)
