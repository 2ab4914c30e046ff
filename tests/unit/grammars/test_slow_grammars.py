"""An answer whose form takes ever longer to follow comes to an end; one on a busy machine does
not."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from dspark.types import Constraint, ConstraintKind, Refusal, RefusalReason, SamplingParams
from tests.unit.grammars.fitting import compiler
from verify_service.batch_runner import Grammar, TooSlow
from verify_service.grammars.compiling import compiled
from verify_service.grammars.matcher import GrammarMatcher
from verify_service.sampler import masks_of, matcher_of
from verify_service.sequences import CachedSequence, VerifyItem

WORDS = [b"a", b"aaaa", b""]  # the last one ends an answer
END, BLOCK = 2, 7
AMBIGUOUS = Constraint(ConstraintKind.GRAMMAR, 'root ::= s\ns ::= s s | "a" | "aa"')
PLAIN = Constraint(ConstraintKind.REGEX, "a+")


def grammar(constraint: Constraint) -> Grammar:
    return partial(GrammarMatcher, compiled(compiler(WORDS), constraint), [END])


def state(constraint: Constraint, answer: list[int]) -> CachedSequence:
    return CachedSequence(
        1, 1, 0, SamplingParams(constraint=constraint), 1, False, 64, token_ids=[0, *answer]
    )


def rounds(constraint: Constraint, most: int) -> int:
    """Blocks of ones that are all kept, until the answer is refused."""
    one = state(constraint, [])
    one.matcher = grammar(constraint)()
    for count in range(most):
        item: Any = VerifyItem(None, 0, (1,) * BLOCK, None)  # type: ignore[arg-type]
        if isinstance(masks_of(one, item), Refusal):
            return count
        one.matcher.accept([1] * (BLOCK + 1))
    return most


def test_an_ambiguous_grammar_comes_to_an_end_and_a_plain_one_goes_on() -> None:
    assert 1 < rounds(AMBIGUOUS, 200) < 200
    assert rounds(PLAIN, 200) == 200


def test_an_answer_that_goes_on_elsewhere_is_read_again_within_bounds() -> None:
    for constraint, ends in ((AMBIGUOUS, True), (PLAIN, False)):
        found = matcher_of(state(constraint, [1] * 2000), grammar(constraint))
        assert isinstance(found, Refusal) is ends
        assert not isinstance(found, Refusal) or found.reason is RefusalReason.INVALID


def test_what_does_not_fit_its_form_cannot_be_gone_on_with() -> None:
    found = matcher_of(state(PLAIN, [END]), grammar(PLAIN))
    assert isinstance(found, Refusal)
    assert found.message.startswith("constraint: ")


class Hindered:
    """xgrammar's matcher, and what else every call of it takes."""

    def __init__(self, matcher: Any, name: str, takes: Callable[[], None]) -> None:
        self._matcher, self._name, self._takes = matcher, name, takes

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._takes()
        return getattr(self._matcher, name)


def computes() -> None:
    until = time.thread_time() + 0.12
    while time.thread_time() < until:
        pass


def hindered(name: str, takes: Callable[[], None], calls: int, drafted: int = 1) -> GrammarMatcher:
    matcher = grammar(PLAIN)()
    matcher._matcher = Hindered(matcher._matcher, name, takes)
    for _ in range(calls):
        matcher.masks([0] * drafted)
    return matcher


@pytest.mark.parametrize("name", ["fill_next_token_bitmask", "accept_token"])
def test_what_others_compute_is_nobody_s_fault(name: str) -> None:
    assert not hindered(name, lambda: time.sleep(0.12), 3).too_slow
    assert not hindered(name, computes, 1).too_slow, "once is forgiven"
    assert hindered(name, computes, 3).too_slow


def test_masks_of_one_pass_end_soon() -> None:
    with pytest.raises(TooSlow):
        hindered("accept_token", computes, 1, drafted=BLOCK)
