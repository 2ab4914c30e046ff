"""Rounds under a grammar follow the law of plain decoding under it exactly, whatever is
drafted."""

import itertools

import pytest

from dspark.types import NO_Q, Rule, SamplingParams
from tests.unit.decoding.enumeration import Tokens, variation
from tests.unit.grammars.masked_walk import (
    BLOCK,
    GRAMMARS,
    VOCAB,
    Round,
    cut,
    emitted,
    matcher_at,
    over,
    plain,
)


@pytest.mark.parametrize(
    "masks", [0, 1, BLOCK], ids=["drafts-free", "first-slots-masked", "drafts-masked"]
)
@pytest.mark.parametrize("rule", [Rule.TOKEN, Rule.BLOCK])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_what_is_emitted_follows_the_masked_law_exactly(
    grammar: str, rule: Rule, masks: int
) -> None:
    lengths: set[int] = set()
    for params in (
        SamplingParams(rule=rule),
        SamplingParams(rule=rule, temperature=0.7, top_k=2),
        SamplingParams(rule=rule, top_p=0.8),
    ):
        found = emitted(grammar, params, masks, lengths)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
        assert variation(found, plain(grammar, params)) <= 1e-9
    assert lengths == {0, 1, 2}, "every length occurs"


def said(here: Round, grammar: str, block: Tokens) -> Tokens:
    """An answer under the real rule, the same block drafted behind every anchor: cut where it is
    longer than left."""
    answer: Tokens = ()
    matcher = matcher_at(grammar, ())
    while not over(answer):
        tokens, matcher = here.run(answer, matcher, block, NO_Q)
        answer += tokens
    return cut(answer)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "coupled"])
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_the_coupled_rule_says_what_plain_decoding_says(grammar: str, temperature: float) -> None:
    answers = set()
    for seed in range(1 if temperature == 0.0 else 6):
        here = Round(SamplingParams(temperature, seed=seed, rule=Rule.COUPLED))
        alone = said(here, grammar, ())
        answers.add(alone)
        for length in range(1, BLOCK + 1):
            for block in itertools.product(range(VOCAB), repeat=length):
                assert said(here, grammar, block) == alone
    assert len(answers) > (temperature > 0.0), "chance decides"
