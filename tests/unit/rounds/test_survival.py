"""Survival: a running product that is zero beyond each block."""

import numpy as np

from dspark.rounds.survival import survival


def test_survival_is_a_running_product_that_no_chance_and_the_end_of_a_block_end() -> None:
    blocks = [[0.5, 0.5, 0.9], [0.8, np.nan, 0.9], [np.nan, 0.9, 0.9], [-1, 0.9, 0.9], [2, 0.5, 1]]
    alive = survival(np.array(blocks), np.array([2, 1, 2, 2, 2]))
    assert alive.tolist() == [[0.5, 0.25, 0], [0.8, 0, 0], [0, 0, 0], [0, 0, 0], [1, 0.5, 0]]
