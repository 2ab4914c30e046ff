"""What forms did is counted from the masks of a round, what it drafted and what it kept."""

from __future__ import annotations

import numpy as np
import pytest

from dspark.decoding.masking import FormCounts, Masks


def masks(*allowed: set[int]) -> Masks:
    made = np.zeros((len(allowed), 3), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            made[row, token // 32] |= np.uint32(1 << token % 32)
    return made.view(np.int32)


@pytest.mark.parametrize(
    ("given", "drafted", "accepted", "counts"),
    [
        ((masks({1, 2}, {63}, {5, 70})), (1, 63), 2, (3, 1, 0)),
        ((masks({31})), (7, 8), 0, (1, 1, 1)),
        ((masks({1, 40}, {2, 3})), (1, 9, 9), 1, (2, 0, 1)),
        ((masks({1, 40}, {2, 3}, {4})), (1, 3), 1, (2, 0, 0)),
        ((masks({1, 40}, {2, 3}, {4})), (1, 9), 0, (1, 0, 0)),
        ((masks({95})), (), 0, (1, 1, 0)),
    ],
)
def test_a_round_is_counted(given: Masks, drafted: tuple[int, ...], accepted: int, counts: tuple[int, ...]) -> None:
    assert FormCounts().with_round(given, drafted, accepted) == counts
