"""A round is timed by the pass before it, where that was of the same sequences."""

import pytest

from dspark.rounds.spans import RoundSpans


def test_a_round_lasts_from_its_cohort_s_last_pass_on() -> None:
    spans = RoundSpans()
    assert spans.ended(0, [1, 2], 10.0, 0.5) == 0.5, "the first one"
    assert spans.ended(0, [2, 3], 11.0, 0.5) == pytest.approx(1.0)
    assert spans.ended(1, [7], 11.5, 0.25) == 0.25, "another cohort"
    assert spans.ended(0, [2, 3], 13.0, 0.5) == pytest.approx(2.0)


def test_what_a_cohort_stood_still_is_no_part_of_a_round() -> None:
    spans = RoundSpans()
    spans.ended(0, [1], 10.0, 0.5)
    assert spans.ended(0, [2], 70.0, 0.5) == 0.5
    assert spans.ended(0, [2], 70.75, 0.5) == pytest.approx(0.75)
