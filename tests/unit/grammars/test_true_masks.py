"""A mask allows what the matcher accepts, and nothing else: found by trying every token. What a
form made of a round is read off its masks, what it drafted and what it kept."""

import json
import random

import numpy as np
import pytest
import xgrammar

from dspark.decoding.masking import Masks, bits, in_form
from dspark.types import Constraint, ConstraintKind
from tests.unit.grammars.fitting import compiler
from verify_service.grammars.compiling import compiled
from verify_service.grammars.matcher import GrammarMatcher

KIND = ConstraintKind
TEXTS = ["ab", "12", "As", "ok", "é", "中", "中a", "\ud7ff", "b中", '"', "\\u", " now"]
WORDS = [bytes([byte]) for byte in range(256)] + [each.encode() for each in TEXTS] + [b""]
END = len(WORDS) - 1
COMPILER = compiler(WORDS)

FORMS = [
    (KIND.REGEX, r"Grade ([A-D]|F)\W(ok|bad)"),
    (KIND.REGEX, r"a (\w|-)\Wb"),
    (KIND.REGEX, r"say (yes|no)[^a-z]now"),
    (KIND.REGEX, r"e(-|[a-z0-9])[\u4e00-\u9fff][0-9]"),
    (KIND.REGEX, r"^(ab)?\S\Db$"),
    (KIND.REGEX, r"a (\w|-)\W*b"),
    (KIND.REGEX, r"a (\w|-)\D{0,3}\Wb"),
    (KIND.REGEX, r"e(-|[a-z0-9])[\u4e00-\u9fff]*[0-9]"),
    (KIND.REGEX, r"(a|b){2}x\D(1|2)"),
    (KIND.JSON_SCHEMA, json.dumps({"type": "string", "pattern": r"^G ([A-D]|F)\W(ok|bad)$"})),
    (KIND.JSON_SCHEMA, json.dumps({"type": "string", "pattern": "^[a-c]{1,4}a[^b]{2,5}$"})),
    (KIND.JSON_SCHEMA, json.dumps({"type": "string", "minLength": 1, "maxLength": 5})),
    (KIND.GRAMMAR, 'root ::= "e" a [^a-z] "b"\na ::= [a-z] | "-"'),
]


@pytest.mark.parametrize(("kind", "text"), FORMS)
def test_a_mask_allows_what_may_come_next(kind: ConstraintKind, text: str) -> None:
    made, draw = compiled(COMPILER, Constraint(kind, text)), random.Random(3)
    ended = 0
    for _ in range(8):
        matcher, mask = xgrammar.GrammarMatcher(made), np.zeros((1, -(-len(WORDS) // 32)), np.int32)
        for _ in range(24):
            matcher.fill_next_token_bitmask(mask, 0)
            taken = np.zeros(len(WORDS), bool)
            for token in range(END):
                if matcher.accept_token(token):
                    matcher.rollback(1)
                    taken[token] = True
            allowed = bits(mask, len(WORDS))[0].numpy()
            assert [WORDS[each] for each in np.flatnonzero(allowed[:END] != taken[:END])] == []
            if allowed[END] and (not taken.any() or draw.random() < 0.3):
                ended += 1
                break
            assert matcher.accept_token(int(draw.choice(np.flatnonzero(taken))))
    assert ended


class AllowsAll:
    """xgrammar's matcher with masks that allow too much."""

    def __init__(self, matcher: xgrammar.GrammarMatcher) -> None:
        self.accept_token, self.is_terminated = matcher.accept_token, matcher.is_terminated

    def fill_next_token_bitmask(self, masks: np.ndarray, index: int) -> None:
        masks[index] = -1


def test_a_token_that_the_grammar_refuses_does_not_free_the_rest() -> None:
    matcher = GrammarMatcher(compiled(COMPILER, Constraint(KIND.REGEX, "ab+")), [END])
    matcher._matcher = AllowsAll(matcher._matcher)
    matcher.accept([ord("a")])
    with pytest.raises(ValueError, match=f"token {ord('x')} does not continue"):
        matcher.accept([ord("x")])


def masks(*allowed: set[int]) -> Masks:
    made = np.zeros((len(allowed), 3), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            made[row, token // 32] |= np.uint32(1 << token % 32)
    return made.view(np.int32)


@pytest.mark.parametrize(
    ("given", "drafted", "accepted", "forced", "forbidden"),
    [
        ((masks({1, 2}, {63}, {5, 70})), (1, 63), 2, (False, True, False), False),
        ((masks({31})), (7, 8), 0, (True,), True),
        ((masks({1, 40}, {2, 3})), (1, 9, 9), 1, (False, False), True),
        ((masks({1, 40}, {2, 3}, {4})), (1, 3), 1, (False, False), False),
        ((masks({1, 40}, {2, 3}, {4})), (1, 9), 0, (False,), False),
        ((masks({95})), (), 0, (True,), False),
    ],
)
def test_what_a_form_made_of_a_round(
    given: Masks, drafted: tuple[int, ...], accepted: int, forced: tuple[bool, ...], forbidden: bool
) -> None:
    assert in_form(given, drafted, accepted) == (forced, forbidden)
