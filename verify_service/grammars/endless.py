"""Grammars without what no answer comes out of: ways of which each leads back before anything is complete. Pure.

Read from what xgrammar writes of a grammar: rules with an expression each, expressions as runs of numbers.
"""

from __future__ import annotations

import json
from collections import defaultdict

from verify_service.grammars.readings import CHOICES, EMPTY, REPEAT, RULE, SEQUENCE


def ending(written: str) -> str:
    """The same grammar without choices that never end. Raises ValueError where no answer is finite. written: a grammar,
    as xgrammar serialises it."""
    told = json.loads(written)
    data, begins = told["grammar_expr_data"], told["grammar_expr_indptr"]
    made = [(data[at], data[at + 2 : at + 2 + data[at + 1]]) for at in begins]
    bodies = [rule[1] for rule in told["rules"]]
    finite = set[int]()
    users = defaultdict[int, set[int]](set)  # by rule that was not known to end, those that wait for it

    def ended(rule: int, user: int) -> bool:
        users[rule].add(user)
        return rule in finite

    def finishes(expression: int, user: int) -> bool:
        kind, parts = made[expression]
        if kind == RULE:
            return ended(parts[0], user)
        if kind == REPEAT:
            return not parts[1] or ended(parts[0], user)
        if kind == SEQUENCE:
            return all(finishes(part, user) for part in parts)
        return kind != CHOICES or any(finishes(part, user) for part in parts)

    waiting = list(range(len(bodies)))
    while waiting:
        rule = waiting.pop()
        if rule not in finite and finishes(bodies[rule], rule):
            finite.add(rule)
            waiting += users.pop(rule, ())
    root = told["root_rule_id"]
    if root not in finite:
        raise ValueError("no answer ever ends as it asks for")
    if len(finite) == len(bodies):
        return written
    data, begins = [], []
    for kind, parts in made:
        if kind == CHOICES:
            parts = [part for part in parts if finishes(part, root)] or parts  # none: nobody comes there any more
        elif kind == REPEAT and parts[0] not in finite:
            kind, parts = EMPTY, []
        begins.append(len(data))
        data += [kind, len(parts), *parts]
    return json.dumps({**told, "grammar_expr_data": data, "grammar_expr_indptr": begins})
