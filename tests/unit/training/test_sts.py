"""Sequential temperature scaling repairs scores that are wrong by a temperature."""

import numpy as np
import pytest

from training.reliability import brier, by_slot, calibration_error, conditional_ranking, ranking, sigmoid, survival
from training.sts import fit


def overconfident(n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Logits twice too large and the accepted lengths that the true ones give."""
    rng = np.random.default_rng(0)
    true = rng.normal(1.0, 1.5, (n, 5))
    accepted = np.cumprod(rng.random((n, 5)) < sigmoid(true), axis=1).sum(axis=1)
    return 2.0 * true, accepted


def test_scaling_finds_the_temperature_and_lowers_the_error() -> None:
    logits, accepted = overconfident()
    found = fit(logits, accepted)
    before = by_slot(survival(logits), accepted)
    after = by_slot(survival(logits, found), accepted)
    assert all(1.4 < temperature < 2.5 for temperature in found)
    assert all(now < was / 2 for was, now in zip(before["ece"], after["ece"], strict=True))
    assert max(after["ece"]) < 0.02
    assert all(now < was for was, now in zip(before["brier"], after["brier"], strict=True))


def test_right_scores_are_left_alone() -> None:
    logits, accepted = overconfident()
    assert all(0.9 < temperature < 1.1 for temperature in fit(logits / 2.0, accepted))


def test_a_temperature_moves_no_score_past_another() -> None:
    logits, accepted = overconfident(3_000)
    assert conditional_ranking(logits, accepted) == conditional_ranking(
        logits / np.array(fit(logits, accepted)), accepted
    )


def test_survival_never_increases_along_a_block() -> None:
    logits, accepted = overconfident(500)
    assert (np.diff(survival(logits, fit(logits, accepted)), axis=1) <= 0).all()


def test_a_right_prediction_has_no_error() -> None:
    assert calibration_error(np.array([0.5, 0.5, 0.0, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])) < 1e-6


def test_ranking_counts_pairs_and_gives_half_for_equals() -> None:
    assert ranking(np.array([0.9, 0.2, 0.5, 0.5]), np.array([1.0, 0.0, 1.0, 0.0])) == pytest.approx(3.5 / 4)
    assert ranking(np.array([0.1, 0.9]), np.array([1.0, 0.0])) == 0.0
    assert np.isnan(ranking(np.array([0.1, 0.9]), np.array([1.0, 1.0])))
    assert brier(np.array([1.0, 0.5]), np.array([0.0, 0.5])) == 0.5


def test_each_slot_is_ranked_among_the_rounds_that_reached_it() -> None:
    logits = np.array([[1.0, 5.0], [2.0, 1.0], [3.0, 2.0], [4.0, 0.0]])
    accepted = np.array([0, 1, 2, 2])
    # Slot 2 was reached by the last three: kept at 2 and 0, lost at 1.
    assert conditional_ranking(logits, accepted) == [1.0, 0.5]
