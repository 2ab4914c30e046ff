"""Columns of a cohort that are sums of a pass: labels and draws, there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dspark.errors import PeerError
from dspark.types import PLACES, Draws
from dspark.wire import cohorts


@pytest.mark.parametrize(
    "spoil", [b"1234", *(np.full((3, 2), wrong, "<f4").tobytes() for wrong in (1.5, -0.1))]
)
def test_labels_that_are_none_break_the_protocol(spoil: bytes) -> None:
    with pytest.raises(PeerError, match="labels"):
        cohorts.labels_in(spoil, 3)


def test_labels_are_a_pair_for_each_slot_or_none_at_all() -> None:
    assert cohorts.labels_in(b"", 3) is None
    known = np.array([[1.0, 0.5], [np.nan, np.nan]], "<f4")
    told = cohorts.labels_in(known.tobytes(), 2)
    assert told is not None
    np.testing.assert_array_equal(told, known)


def test_draws_come_back_as_they_went() -> None:
    sums = Draws("v", 3, (3, *[0] * (PLACES - 1)), -0.5, 0.4, 2, 0.1, 0.2)
    assert cohorts.read_draws([cohorts.write_draws(sums)]) == (sums,)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("slots", 4),
        ("places", [1, 2]),
        ("drift", 3.5),
        ("drift", float("nan")),
        ("variance", -1.0),
        ("variance", float("inf")),
        ("luck", -2.5),
        ("luck_variance", 9.0),
    ],
)
def test_draws_that_cannot_be_sums_break_the_protocol(field: str, value: Any) -> None:
    sums = Draws("v", 3, (3, *[0] * (PLACES - 1)), -0.5, 0.4, 2, 0.1, 0.2)
    message = cohorts.write_draws(sums)
    if field == "places":
        del message.places[:]
        message.places.extend(value)
    else:
        setattr(message, field, value)
    with pytest.raises(PeerError, match="draws"):
        cohorts.read_draws([message])
