"""Accepted length and intervals from counts."""

from __future__ import annotations

import numpy as np
import pytest

from training.lab.statistics import Interval, conditional, differences, intervals, measured, tau

RNG = np.random.default_rng(1)


def _counts(level: float, prompts: int = 40) -> dict[str, np.ndarray]:
    """Two domains of prompts with 60 tokens each, tau around `level` and `level + 1`."""
    return {
        domain: np.stack(
            (np.round(60 / (level + more + 0.2 * RNG.standard_normal(prompts))), np.full(prompts, 60)), 1
        ).astype(np.int64)
        for domain, more in (("code", 0), ("math", 1))
    }


def test_tau_is_pooled_over_rounds_and_not_over_prompts() -> None:
    assert tau(np.array([[10, 20], [30, 30], [0, 0]])) == 50 / 40


def test_domains_and_seeds_weigh_the_same() -> None:
    one = {"code": np.array([[10, 20]]), "math": np.array([[100, 400]])}
    two = {"code": np.array([[10, 40]]), "math": np.array([[10, 20]])}
    assert measured([one, two]) == {"code": 3.0, "math": 3.0, "mean": 3.0}


def test_intervals_hold_their_middle_and_widen_with_the_spread_of_seeds() -> None:
    alike = intervals([_counts(3.0), _counts(3.0), _counts(3.0)])
    apart = intervals([_counts(2.5), _counts(3.0), _counts(3.5)])
    for made in (alike, apart):
        assert all(value.low < value.middle < value.high for value in made.values())
    assert apart["mean"].high - apart["mean"].low > 3 * (alike["mean"].high - alike["mean"].low)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    hits = 0
    for _ in range(60):
        prompts = RNG.poisson(30, size=(50, 1)) + 1
        counts = {"code": np.concatenate((prompts, RNG.binomial(7, 0.5, (50, 1)) * prompts), axis=1)}
        made = intervals([counts])["mean"]
        hits += made.low <= 3.5 <= made.high
    assert hits >= 50


def test_a_difference_drops_what_both_share() -> None:
    shared = [_counts(3.0) for _ in range(3)]
    more = [{d: rows + np.array([0, 3]) for d, rows in counts.items()} for counts in shared]
    gap = differences(more, shared)["mean"]
    alone = intervals(shared)["mean"]
    assert gap.low > 0
    assert gap.high - gap.low < 0.3 * (alone.high - alone.low)


@pytest.mark.parametrize(("other", "apart"), [((2.0, 2.4), True), ((2.4, 2.6), False), ((3.1, 4.0), True)])
def test_intervals_are_apart_when_they_do_not_meet(other: tuple[float, float], apart: bool) -> None:
    assert Interval(2.75, 2.5, 3.0).apart_from(Interval(sum(other) / 2, *other)) is apart


def test_conditional_acceptance_divides_by_those_that_got_there() -> None:
    assert conditional([8, 4, 4, 0], 10) == [0.8, 0.5, 1.0, 0.0]
    assert np.isnan(conditional([0, 0], 10)[1])
    assert np.isnan(conditional([8, 4], 10, fewest=9)).tolist() == [False, True]
