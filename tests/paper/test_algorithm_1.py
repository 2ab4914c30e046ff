"""Section 3.2.2 and Algorithm 1, equation by equation, on the scheduler that is deployed.

R requests, gamma slots: survival a[r, j] = c[r, 1] ... c[r, j]; B = R + sum of lengths; tau = R + sum of admitted
survival; the objective is Theta = tau * SPS(B), and the deployed code is given seconds = 1 / SPS.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from dspark.rounds.policy import Greedy
from dspark.rounds.schedule import schedule, survival

Lengths = tuple[int, ...]
Sps = Callable[[int], float]
GAMMA = 3


def deployed(confidence: np.ndarray, sps: Sps) -> Lengths:
    """The real scheduler, every row greedy and every block full."""
    rows, slots = confidence.shape

    def seconds(tokens: np.ndarray) -> np.ndarray:
        return np.array([1.0 / sps(int(count)) for count in tokens])

    return tuple(schedule(confidence, np.full(rows, slots), [Greedy()] * rows, seconds).tolist())


def written_out(confidence: np.ndarray, sps: Sps) -> Lengths:
    """Algorithm 1 line by line."""
    rows, slots = confidence.shape
    a = {(r, j): float(np.prod(confidence[r, :j])) for r in range(rows) for j in range(1, slots + 1)}
    candidates = sorted((pair for pair in a if a[pair] > 0), key=lambda pair: (-a[pair], pair[1], pair[0]))
    lengths, tokens, tau = [0] * rows, rows, float(rows)
    best, result = tau * sps(tokens), tuple(lengths)
    for r, j in candidates:
        lengths[r], tokens, tau = j, tokens + 1, tau + a[r, j]
        if tau * sps(tokens) > best:
            best, result = tau * sps(tokens), tuple(lengths)
        else:
            break
    return result


def theta(confidence: np.ndarray, lengths: Lengths, sps: Sps) -> float:
    tau = sum(
        1.0 + sum(float(np.prod(row[: j + 1])) for j in range(n)) for row, n in zip(confidence, lengths, strict=True)
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


@pytest.mark.parametrize("smooth", [True, False])
def test_the_scheduler_is_algorithm_1(smooth: bool) -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(1000):
        confidence, sps = confidences(rng), curve_of(rng, smooth)
        lengths = deployed(confidence, sps)
        assert lengths == written_out(confidence, sps)
        seen |= set(lengths)
    assert seen == set(range(GAMMA + 1))


def test_early_stop_finds_the_global_optimum_when_theta_has_one_peak() -> None:
    rng = np.random.default_rng(2)
    for _ in range(300):
        confidence, sps = confidences(rng), curve_of(rng, smooth=True)
        got = theta(confidence, deployed(confidence, sps), sps)
        assert got == pytest.approx(best_of_all(confidence, sps), rel=1e-12)


def test_stairs_can_trap_early_stop_below_the_optimum_but_never_below_plain_decoding() -> None:
    rng = np.random.default_rng(3)
    trapped = 0
    for _ in range(300):
        confidence, sps = confidences(rng), curve_of(rng, smooth=False)
        got, best = theta(confidence, deployed(confidence, sps), sps), best_of_all(confidence, sps)
        plain = theta(confidence, (0,) * len(confidence), sps)
        assert plain * (1 - 1e-12) <= got <= best * (1 + 1e-12)
        trapped += got < best * (1 - 1e-9)
    assert trapped > 0


def test_no_decision_depends_on_anything_that_follows_from_it() -> None:
    # Slot k + 1 and later have confidences that depend on the token of slot k: whether slot k is verified must not.
    rng = np.random.default_rng(4)
    for _ in range(1000):
        confidence, sps = confidences(rng), curve_of(rng, smooth=bool(rng.integers(0, 2)))
        row, k = int(rng.integers(0, len(confidence))), int(rng.integers(1, GAMMA + 1))
        other = confidence.copy()
        other[row, k:] = rng.choice([0.0, 1.0, rng.random()], GAMMA - k)
        assert (deployed(confidence, sps)[row] >= k) == (deployed(other, sps)[row] >= k)


def test_tokens_that_cost_nothing_are_verified_and_tokens_that_cost_too_much_are_not() -> None:
    confidence = np.array([[0.9, 0.8, 0.7], [0.5, 0.0, 0.9]])
    assert deployed(confidence, lambda _: 100.0) == (3, 1), "survival 0 is no candidate"
    assert deployed(confidence, lambda tokens: 1.0 / tokens**2) == (0, 0), "the anchors alone are always sent"


def test_an_improvement_must_be_strict() -> None:
    # One request, c = 1: two tokens at half the rate change nothing, so nothing is spent.
    assert deployed(np.array([[1.0, 1.0]]), lambda tokens: 1.0 / tokens) == (0,)
