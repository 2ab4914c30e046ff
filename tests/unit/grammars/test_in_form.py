"""What a form made of a round is read off its masks, what it drafted and what it kept."""

import numpy as np
import pytest

from dspark.decoding.masking import Masks, in_form


def masks(*allowed: set[int]) -> Masks:
    made = np.zeros((len(allowed), 3), np.uint32)
    for row, tokens in enumerate(allowed):
        for token in tokens:
            made[row, token // 32] |= np.uint32(1 << token % 32)
    return made.view(np.int32)


@pytest.mark.parametrize(
    ("given", "drafted", "accepted", "forced", "forbidden"),
    [
        ((masks({1, 2}, {63}, {5, 70})), (1, 63), 2, (False, True, False), False),
        ((masks({31})), (7, 8), 0, (True,), True),
        ((masks({1, 40}, {2, 3})), (1, 9, 9), 1, (False, False), True),
        ((masks({1, 40}, {2, 3}, {4})), (1, 3), 1, (False, False), False),
        ((masks({1, 40}, {2, 3}, {4})), (1, 9), 0, (False,), False),
        ((masks({95})), (), 0, (True,), False),
    ],
)
def test_what_a_form_made_of_a_round(
    given: Masks, drafted: tuple[int, ...], accepted: int, forced: tuple[bool, ...], forbidden: bool
) -> None:
    assert in_form(given, drafted, accepted) == (forced, forbidden)
