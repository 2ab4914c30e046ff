"""Rounds under a grammar follow the law of plain decoding under it exactly, whatever is drafted;
and whoever breaks that is found out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from masked_walk import (
    BLOCK,
    GRAMMARS,
    VOCAB,
    Drafting,
    Refused,
    Round,
    Tokens,
    cut,
    emitted,
    matcher_at,
    over,
    plain,
    variation,
)

from dspark.decoding.masking import Masks, mask
from dspark.types import NO_Q, Rule, SamplingParams
from verify_service import packed_step
from verify_service.grammars.matcher import GrammarMatcher

BOUND, SEEN = 1e-9, 1e-4
RATIO = [Rule.TOKEN, Rule.BLOCK]
SHORTEST_FIRST = ("nested", "choice", "regex")  # by what there is to enumerate under a bug


def params_of(rule: Rule, **fields: float) -> SamplingParams:
    return SamplingParams(rule=rule, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "masks", [0, 1, BLOCK], ids=["drafts-free", "first-slots-masked", "drafts-masked"]
)
@pytest.mark.parametrize("rule", RATIO)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_what_is_emitted_follows_the_masked_law_exactly(
    grammar: str, rule: Rule, masks: int
) -> None:
    lengths: set[int] = set()
    for params in (
        params_of(rule),
        params_of(rule, temperature=0.7, top_k=2),
        params_of(rule, top_p=0.8),
    ):
        found = emitted(grammar, params, Drafting(masks), lengths=lengths)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-9)
        assert variation(found, plain(grammar, params)) <= BOUND
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


# Bugs of other servers, planted one at a time.


class BonusUnmasked(GrammarMatcher):
    def masks(self, drafted: Sequence[int]) -> Masks:
        made = super().masks(drafted)
        return made[: len(drafted)] if drafted else made


class OneSlotLate(GrammarMatcher):
    def masks(self, drafted: Sequence[int]) -> Masks:
        made = super().masks(drafted)
        return np.concatenate([made[:1], made[:-1]])


class NotRolledBack(GrammarMatcher):
    def masks(self, drafted: Sequence[int]) -> Masks:
        made = super().masks(drafted)
        for token in drafted:
            self._matcher.accept_token(token)
        return made


class OverRejected(GrammarMatcher):
    drafted: Sequence[int] = ()

    def masks(self, drafted: Sequence[int]) -> Masks:
        self.drafted = drafted
        return super().masks(drafted)

    def accept(self, tokens: Sequence[int]) -> None:
        for token in [*self.drafted, *tokens[-1:]]:
            self._matcher.accept_token(token)


def after_truncation(logits: torch.Tensor, parts: Sequence[tuple[int, Masks]]) -> None:
    kept = torch.where(logits >= logits.topk(2, -1).values[:, -1:], logits, -50.0)
    logits.copy_(kept)
    mask(logits, parts)


@pytest.mark.parametrize("rule", RATIO)
@pytest.mark.parametrize("bug", [BonusUnmasked, OneSlotLate, NotRolledBack, OverRejected])
def test_a_broken_matcher_is_found(bug: type[GrammarMatcher], rule: Rule) -> None:
    params = params_of(rule)

    def shows(name: str) -> bool:
        try:
            return variation(emitted(name, params, Drafting(0), bug), plain(name, params)) > SEEN
        except Refused:  # it says of itself that it has left the grammar
            return True

    assert any(shows(name) for name in SHORTEST_FIRST)


@pytest.mark.parametrize("rule", RATIO)
def test_a_mask_behind_truncation_is_found(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_step, "mask", after_truncation)
    params = params_of(rule, temperature=0.7, top_k=2)
    assert any(
        variation(emitted(each, params, Drafting(0)), plain(each, params)) > SEEN
        for each in GRAMMARS
    )


@pytest.mark.parametrize("rule", RATIO)
def test_drafts_that_were_masked_and_sent_unmasked_are_found(rule: Rule) -> None:
    params, drafting = params_of(rule), Drafting(1, sends_unmasked=True)
    assert any(
        variation(emitted(each, params, drafting), plain(each, params)) > SEEN for each in GRAMMARS
    )
