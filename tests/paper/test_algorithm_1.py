"""Section 3.2.2 and Algorithm 1, equation by equation, on the planner that is deployed.

R requests, gamma slots: survival a[r, j] = c[r, 1] ... c[r, j]; B = R + sum of lengths; tau = R +
sum of admitted survival; the objective is Theta = tau * SPS(B), and the deployed code is given
seconds = 1 / SPS. It walks survivals that are a round old and looks at all sizes, which is allowed
then; where it stops is the price, and a verifier takes the slots that reach it.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from coordinator.planning.options import best_prefix
from dspark.rounds.plan import BlockTerms, PlanKind, prefixes
from dspark.rounds.survival import survival
from tests.algorithm_1 import lengths_of

Lengths = tuple[int, ...]
Sps = Callable[[int], float]
GAMMA = 3


def price_of(confidence: np.ndarray, sps: Sps) -> float:
    """What the planner makes of blocks like these."""
    ranks = -np.sort(
        -survival(confidence, np.full(len(confidence), confidence.shape[1])), axis=None
    )
    seconds = np.array([1.0 / sps(len(confidence) + more) for more in range(len(ranks) + 1)])
    return best_prefix(ranks, ranks, float(len(confidence)), seconds).price


def verified(confidence: np.ndarray, price: float) -> Lengths:
    """What a verifier takes of blocks for a price."""
    terms = [BlockTerms(PlanKind.PRICE, confidence.shape[1], price)] * len(confidence)
    return tuple(prefixes(confidence.tolist(), terms))


def deployed(confidence: np.ndarray, sps: Sps) -> Lengths:
    """Blocks that meet the price they have made."""
    return verified(confidence, price_of(confidence, sps))


def written_out(confidence: np.ndarray, sps: Sps) -> Lengths:
    return tuple(lengths_of(confidence, lambda tokens: 1.0 / sps(int(tokens))))


def theta(confidence: np.ndarray, lengths: Lengths, sps: Sps) -> float:
    tau = sum(
        1.0 + sum(float(np.prod(row[: j + 1])) for j in range(n))
        for row, n in zip(confidence, lengths, strict=True)
    )
    return tau * sps(len(lengths) + sum(lengths))


def best_of_all(confidence: np.ndarray, sps: Sps) -> float:
    """Theta of the best lengths, by trying all of them."""
    every = itertools.product(range(confidence.shape[1] + 1), repeat=len(confidence))
    return max(theta(confidence, lengths, sps) for lengths in every)


def curve_of(rng: np.random.Generator, smooth: bool) -> Sps:
    """Steps per second by tokens: of convex step time, where Theta has one peak, or with stairs."""
    rises = rng.uniform(0.02, 1.0) * rng.uniform(0.0, 1.0, 40) ** (1 if smooth else 6)
    seconds = rng.uniform(0.3, 3.0) + np.cumsum(np.sort(rises) if smooth else rises)
    return lambda tokens: 1.0 / float(seconds[tokens])


def confidences(rng: np.random.Generator) -> np.ndarray:
    shape = (int(rng.integers(1, 5)), GAMMA)
    if rng.random() < 0.3:
        return rng.choice([0.0, 0.5, 1.0], shape)  # ties everywhere, and slots that cannot survive
    return rng.random(shape)


def test_survival_is_the_running_product_and_never_increases() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        confidence = confidences(rng)
        alive = survival(confidence, np.full(len(confidence), GAMMA))
        for r, j in itertools.product(range(len(confidence)), range(GAMMA)):
            assert alive[r, j] == pytest.approx(float(np.prod(confidence[r, : j + 1])), abs=1e-15)
        assert (np.diff(alive, axis=1) <= 0.0).all()


def test_the_price_is_where_algorithm_1_stops_when_theta_has_one_peak() -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(1000):
        confidence, sps = rng.random((int(rng.integers(1, 5)), GAMMA)), curve_of(rng, smooth=True)
        lengths = deployed(confidence, sps)
        assert lengths == written_out(confidence, sps)
        seen |= set(lengths)
    assert seen == set(range(GAMMA + 1))


@pytest.mark.parametrize("smooth", [True, False])
def test_the_price_finds_the_global_optimum_even_on_stairs(smooth: bool) -> None:
    rng = np.random.default_rng(2)
    trapped = 0
    for _ in range(300):
        confidence, sps = rng.random((int(rng.integers(1, 5)), GAMMA)), curve_of(rng, smooth)
        best = best_of_all(confidence, sps)
        assert theta(confidence, deployed(confidence, sps), sps) == pytest.approx(best, rel=1e-12)
        trapped += theta(confidence, written_out(confidence, sps), sps) < best * (1 - 1e-9)
    assert (trapped > 0) is not smooth, "early stop, which a live walk needs, may stop at a riser"


def test_tokens_that_cost_nothing_are_verified_and_tokens_that_cost_too_much_are_not() -> None:
    confidence = np.array([[0.9, 0.8, 0.7], [0.5, 0.0, 0.9]])
    assert deployed(confidence, lambda _: 100.0) == (3, 1), "survival 0 brings nothing"
    assert deployed(confidence, lambda tokens: 1.0 / tokens**2) == (0, 0), (
        "the anchors alone are always sent"
    )


def test_an_improvement_must_be_strict() -> None:
    # One request, c = 1: two tokens at half the rate change nothing, so nothing is spent.
    assert deployed(np.array([[1.0, 1.0]]), lambda tokens: 1.0 / tokens) == (0,)
