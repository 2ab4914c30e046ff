"""Appendix A: looking back over all lengths breaks losslessness, early stop does not.

One request, two slots, c_1 = 0.8, SPS(1, 2, 3) = 1.0, 0.5, 0.45; p = (0.7, 0.3) and q = (0.5, 0.5) over {A, B}. The
second confidence depends on the drafted first token: 0.9 after A, 0 after B.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from dspark.decoding.acceptance import accept_probability, residual, token_rule
from dspark.rounds.policy import Async, Fixed, Greedy, Off, Policy, Threshold
from dspark.rounds.schedule import schedule

A, B = 0, 1
P, Q = [0.7, 0.3], [0.5, 0.5]
SECOND = {A: 0.9, B: 0.0}
SPS = {1: 1.0, 2: 0.5, 3: 0.45}

Prefix = Callable[[list[float]], int]


def by(policy: Policy) -> Prefix:
    """The scheduler that is deployed."""

    def prefix(confidence: list[float]) -> int:
        def seconds(tokens: np.ndarray) -> np.ndarray:
            return np.array([1.0 / SPS[int(count)] for count in tokens])

        return int(schedule(np.array([confidence]), np.array([2]), [policy], seconds)[0])

    return prefix


def by_budget(slots: int) -> Prefix:
    """The deployed `async` with a budget fixed before the draft."""

    def prefix(confidence: list[float]) -> int:
        return int(schedule(np.array([confidence]), np.array([2]), [Async()], None, budget=slots)[0])

    return prefix


def search(confidence: list[float]) -> int:
    """The counter-example: the best of all lengths, c_2 and with it the first token in full view."""
    survival = np.cumprod([1.0, *confidence])
    theta = [float(survival[: length + 1].sum()) * SPS[length + 1] for length in range(3)]
    return int(np.argmax(theta))


def first_token_law(prefix: Prefix) -> list[float]:
    """Exact law of the first token of the round, coins integrated, through the real acceptance code."""
    law = [0.0, 0.0]
    for x, drawn in enumerate(Q):
        if prefix([0.8, SECOND[x]]) == 0:
            law = [so_far + drawn * p for so_far, p in zip(law, P, strict=True)]
            continue
        kept = float(accept_probability(P[x], Q[x]))
        law[x] += drawn * kept
        after = residual(torch.tensor(P, dtype=torch.float64), torch.tensor(Q, dtype=torch.float64)).tolist()
        law = [so_far + drawn * (1.0 - kept) * share for so_far, share in zip(law, after, strict=True)]
    return law


def test_the_first_confidence_is_the_acceptance_of_the_example() -> None:
    assert sum(min(p, q) for p, q in zip(P, Q, strict=True)) == pytest.approx(0.8)


def test_early_stop_verifies_nothing_whatever_the_second_confidence() -> None:
    assert [by(Greedy())([0.8, SECOND[x]]) for x in (A, B)] == [0, 0]


def test_a_search_over_all_lengths_lets_the_drafted_token_decide() -> None:
    assert [search([0.8, SECOND[x]]) for x in (A, B)] == [2, 0]


def test_early_stop_is_lossless_and_the_search_is_not() -> None:
    assert first_token_law(by(Greedy())) == pytest.approx([0.7, 0.3], abs=1e-12)
    assert first_token_law(search) == pytest.approx([0.85, 0.15], abs=1e-12)


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_a_budget_that_is_older_than_the_draft_is_lossless(slots: int) -> None:
    assert first_token_law(by_budget(slots)) == pytest.approx([0.7, 0.3], abs=1e-12)


@pytest.mark.parametrize(
    "policy", [Off(), Fixed(1), Fixed(2), Threshold(0.5), Threshold(0.85), Threshold(0.95)], ids=str
)
def test_the_other_policies_are_lossless_on_the_example_too(policy: Policy) -> None:
    assert first_token_law(by(policy)) == pytest.approx([0.7, 0.3], abs=1e-12)


def test_the_deployed_rule_shows_the_same_two_laws_on_a_grid_of_coins() -> None:
    grid = (np.arange(20) + 0.5) / 20  # every chance of the example is a multiple of 1/20: no error is left
    for prefix, want in ((by(Greedy()), [0.7, 0.3]), (search, [0.85, 0.15])):
        law = [0.0, 0.0]
        for x in (A, B):
            sent = min(prefix([0.8, SECOND[x]]), 1)  # the first token is decided by the first slot
            rows = torch.tensor([P] * (sent + 1), dtype=torch.float64)
            q = (np.array([[A, B]] * sent).reshape(sent, 2), np.array([Q] * sent, np.float32).reshape(sent, 2))
            for u in grid:
                for emit_u in grid:
                    accepted, token = token_rule(rows, [x] * sent, q, [u] * sent, float(emit_u))
                    law[x if accepted else token] += Q[x] / len(grid) ** 2
        assert law == pytest.approx(want, abs=1e-9)
