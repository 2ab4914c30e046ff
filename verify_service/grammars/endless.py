"""Grammars of which no answer ever ends: every way on leads back before anything is complete. Pure.

Read from what xgrammar writes of a grammar: rules with an expression each, expressions as runs of numbers.
"""

from __future__ import annotations

import json
from collections import defaultdict

RULE, SEQUENCE, CHOICES, REPEAT = 4, 5, 6, 8  # kinds of expressions; those of other kinds always end


def ends(written: str) -> bool:
    """Whether some answer is finite. written: a grammar, as xgrammar serialises it."""
    told = json.loads(written)
    data, begins = told["grammar_expr_data"], told["grammar_expr_indptr"]
    bodies = [rule[1] for rule in told["rules"]]
    finite = set[int]()
    users = defaultdict[int, set[int]](set)  # by rule that was not known to end, those that wait for it

    def ended(rule: int, user: int) -> bool:
        users[rule].add(user)
        return rule in finite

    def finishes(expression: int, user: int) -> bool:
        at = begins[expression]
        kind, parts = data[at], data[at + 2 : at + 2 + data[at + 1]]
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
    return told["root_rule_id"] in finite
