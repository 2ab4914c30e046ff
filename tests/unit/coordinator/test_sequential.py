"""Wealth against honest draws stays small for ever; against lies of every kind it grows without
bound."""

import math
from dataclasses import replace

import numpy as np
import pytest

from coordinator.lanes.sequential_test import log_wealth, of_places, of_sum
from dspark.types import PLACES, Draws


def places(counts: np.ndarray) -> Draws:
    return Draws("d", slots=int(counts.sum()), places=tuple(counts.tolist()))


def test_no_draws_are_no_evidence() -> None:
    assert log_wealth(Draws("d"))[0] == pytest.approx(0.0, abs=1e-9)


def test_wealth_of_places_is_one_on_average() -> None:
    # One draw into each of the places, all equally likely: the mean of the wealth is exactly 1.
    each = [
        math.exp(of_places(places(np.eye(PLACES, dtype=int)[place]))) for place in range(PLACES)
    ]
    assert np.mean(each) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.1), (-0.02, 1.0), (-0.5, 0.5)])
def test_wealth_of_a_sum_is_at_most_one_on_average(low: float, high: float) -> None:
    # A difference of two values and mean 0: its wealth is averaged over both.
    chance = -low / (high - low)  # of the high one
    variance = chance * high**2 + (1 - chance) * low**2
    mean = chance * math.exp(of_sum(high, variance)) + (1 - chance) * math.exp(
        of_sum(low, variance)
    )
    assert 0.5 < mean <= 1.0 + 1e-9


def test_honest_draws_hardly_ever_reach_what_alarms() -> None:
    # Ville: the chance that wealth ever reaches 20 is at most 1/20.
    rng = np.random.default_rng(1)
    reached = 0
    for _ in range(200):
        counts = np.cumsum(rng.multinomial(50, np.full(PLACES, 1 / PLACES), 100), axis=0)
        reached += any(of_places(places(row)) >= math.log(20) for row in counts[::5])
    assert reached <= 200 / 20 + 3 * (200 / 20) ** 0.5


@pytest.mark.parametrize("level", range(1, 7))
def test_a_part_of_any_width_that_gets_too_much_is_found(level: int) -> None:
    width = PLACES >> level
    counts = np.full(PLACES, 1000)
    counts[width : 2 * width] += 120_000 // PLACES * 3 // width  # another 4 % or so of all
    wealth, why = log_wealth(places(counts))
    assert wealth > 20
    assert why == "places"


@pytest.mark.parametrize(("why", "variance"), [("drift", "variance"), ("luck", "luck_variance")])
@pytest.mark.parametrize("mean", [0.3, -0.3, 0.01, -0.01])
def test_a_sum_that_leans_to_either_side_is_found(mean: float, why: str, variance: str) -> None:
    slots = round(80 * 0.2 / mean**2)
    even = tuple([slots // PLACES] * PLACES)
    sums = Draws("d", sum(even), even)
    wealth, found = log_wealth(replace(sums, **{why: mean * slots, variance: 0.2 * slots}))
    assert wealth > 13.8
    assert found == why
