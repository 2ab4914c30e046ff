"""Survival: a running product that is zero beyond each block."""

import numpy as np

from dspark.rounds.survival import survival


def test_survival_is_a_running_product_that_is_zero_beyond_each_block() -> None:
    alive = survival(np.array([[0.5, 0.5, 0.9], [0.8, np.nan, 0.9]]), np.array([2, 1]))
    assert alive.tolist() == [[0.5, 0.25, 0.0], [0.8, 0.0, 0.0]]


def test_what_is_no_chance_is_none_and_ends_a_block() -> None:
    alive = survival(np.array([[np.nan, 0.9], [-1.0, 0.9], [2.0, 0.5]]), np.array([2, 2, 2]))
    assert alive.tolist() == [[0.0, 0.0], [0.0, 0.0], [1.0, 0.5]]
