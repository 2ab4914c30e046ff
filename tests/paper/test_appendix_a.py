"""Appendix A: looking back over all lengths breaks losslessness, a price that is older than the
block does not.

One request, two slots, c_1 = 0.8, SPS(1, 2, 3) = 1.0, 0.5, 0.45; p = (0.7, 0.3) and q = (0.5, 0.5)
over {A, B}. The second confidence depends on the drafted first token: 0.9 after A, 0 after B.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import accept_probability, residual
from dspark.rounds.plan import PLAIN, BlockTerms, PlanKind, prefixes

A, B = 0, 1
P, Q = [0.7, 0.3], [0.5, 0.5]
SECOND = {A: 0.9, B: 0.0}
SPS = {1: 1.0, 2: 0.5, 3: 0.45}

Prefix = Callable[[list[float]], int]


PRICES = (0.0, 0.5, 0.75, 0.8, 0.81, float("inf"))


def by(terms: BlockTerms) -> Prefix:
    """What verifiers that are deployed take."""
    return lambda confidence: prefixes([confidence[: terms.slots]], [terms])[0]


def priced(price: float) -> Prefix:
    return by(BlockTerms(PlanKind.PRICE, 2, price))


def search(confidence: list[float]) -> int:
    """The counter-example: the best of all lengths, c_2 and with it the first token in full
    view."""
    survival = np.cumprod([1.0, *confidence])
    theta = [float(survival[: length + 1].sum()) * SPS[length + 1] for length in range(3)]
    return int(np.argmax(theta))


def first_token_law(prefix: Prefix) -> list[float]:
    """Exact law of the first token of the round, coins integrated, through the real acceptance
    code."""
    law = [0.0, 0.0]
    for x, drawn in enumerate(Q):
        if prefix([0.8, SECOND[x]]) == 0:
            law = [so_far + drawn * p for so_far, p in zip(law, P, strict=True)]
            continue
        kept = float(accept_probability(P[x], Q[x]))
        law[x] += drawn * kept
        after = residual(
            torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)
        ).tolist()
        law = [
            so_far + drawn * (1.0 - kept) * share for so_far, share in zip(law, after, strict=True)
        ]
    return law


def test_the_first_confidence_is_the_acceptance_of_the_example() -> None:
    assert sum(min(p, q) for p, q in zip(P, Q, strict=True)) == pytest.approx(0.8)


def test_a_search_over_all_lengths_lets_the_drafted_token_decide() -> None:
    assert [search([0.8, SECOND[x]]) for x in (A, B)] == [2, 0]


@pytest.mark.parametrize("price", PRICES)
def test_a_price_that_is_older_than_the_draft_is_lossless(price: float) -> None:
    assert first_token_law(priced(price)) == pytest.approx([0.7, 0.3], abs=1e-12)


def test_the_search_is_not() -> None:
    assert first_token_law(search) == pytest.approx([0.85, 0.15], abs=1e-12)


@pytest.mark.parametrize(
    "terms",
    [
        PLAIN,
        BlockTerms(PlanKind.FIXED, 1),
        BlockTerms(PlanKind.FIXED, 2),
        *(BlockTerms(PlanKind.THRESHOLD, 2, at) for at in (0.5, 0.85, 0.95)),
        BlockTerms(PlanKind.PRICE, 2, 0.5, 1.0, 1),
    ],
    ids=lambda terms: f"{terms.kind.name.lower()} {terms.slots} {terms.price:g}",
)
def test_other_terms_are_lossless_on_the_example_too(terms: BlockTerms) -> None:
    assert first_token_law(by(terms)) == pytest.approx([0.7, 0.3], abs=1e-12)
