"""Pieces of a step: what is computed at one time is bounded, padding included."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dspark.training.batches import pieces


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 800))
def test_no_piece_is_larger_than_asked_padding_included(lengths: list[int], most: int) -> None:
    found = pieces(lengths, most)
    assert sorted(place for piece in found for place in piece) == list(range(len(lengths)))
    for piece in found:
        longest = max(lengths[place] for place in piece)
        assert len(piece) == 1 or len(piece) * longest <= most
