"""Sequential scaling repairs scores that are wrong by a temperature, or by an offset."""

from collections.abc import Callable

import numpy as np
import pytest

from dspark.model.calibration import SlotFit
from dspark.training.reliability import (
    LEAST,
    MOST,
    STIFFNESS,
    by_slot,
    conditional_ranking,
    ranking,
    sigmoid,
    survival,
    temperatures,
    with_offsets,
)


def overconfident(n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Logits twice too large and the accepted lengths that the true ones give."""
    rng = np.random.default_rng(0)
    true = rng.normal(1.0, 1.5, (n, 5))
    accepted = np.cumprod(rng.random((n, 5)) < sigmoid(true), axis=1).sum(axis=1)
    return 2.0 * true, accepted


@pytest.mark.parametrize("fitted", [temperatures, with_offsets])
def test_scaling_finds_the_temperature_and_lowers_the_error(fitted: Callable[..., SlotFit]) -> None:
    logits, accepted = overconfident()
    found = fitted(logits, accepted)
    before = by_slot(survival(logits), accepted)
    after = by_slot(survival(logits, found), accepted)
    assert all(1.4 < temperature < 2.5 for temperature in found.temperatures)
    assert all(now < was / 2 for was, now in zip(before["ece"], after["ece"], strict=True))
    assert max(after["ece"]) < 0.02


@pytest.mark.parametrize("fitted", [temperatures, with_offsets])
def test_right_scores_are_left_alone(fitted: Callable[..., SlotFit]) -> None:
    logits, accepted = overconfident()
    found = fitted(logits / 2.0, accepted)
    assert all(0.9 < temperature < 1.1 for temperature in found.temperatures)
    assert all(abs(offset) < 0.1 for offset in found.offsets)


def test_an_offset_repairs_what_no_temperature_can() -> None:
    rng = np.random.default_rng(1)
    true = rng.normal(0.0, 1.0, (20_000, 3))
    accepted = np.cumprod(rng.random(true.shape) < sigmoid(true), axis=1).sum(axis=1)
    told = (true - np.array([0.8, -0.5, 0.3])) * 1.5  # true = told / 1.5 + offset
    scaled, moved = (
        by_slot(survival(told, fit(told, accepted)), accepted)
        for fit in (temperatures, with_offsets)
    )
    np.testing.assert_allclose(with_offsets(told, accepted).offsets, [0.8, -0.5, 0.3], atol=0.12)
    assert max(moved["ece"]) < 0.02 < 0.05 < max(scaled["ece"])


@pytest.mark.parametrize(("times", "bound"), [(20.0, MOST), (0.05, LEAST)])
def test_an_offset_is_the_best_one_where_no_temperature_goes_far_enough(
    times: float, bound: float
) -> None:
    rng = np.random.default_rng(3)
    true = rng.normal(-1.5, 1.5, (20_000, 1))
    told = (true + 1.5) * times
    kept = rng.random(true.shape) < sigmoid(true)
    found = with_offsets(told, kept.sum(axis=1))
    assert found.temperatures == pytest.approx([bound])
    # where the offset's own gradient is 0
    lost = (survival(told, found) - kept).sum() + STIFFNESS * found.offsets[0]
    assert abs(lost) < 1.0


def test_slots_that_were_never_reached_stay_as_they_are() -> None:
    logits = np.random.default_rng(2).normal(0.0, 1.0, (500, 3))
    found = with_offsets(logits, np.zeros(500, np.int64))
    assert found.offsets[0] < -1.0
    assert all(np.isfinite(found.temperatures))
    assert all(np.isfinite(found.offsets))


def test_few_rounds_move_little() -> None:
    found = with_offsets(np.zeros((3, 2)), np.array([0, 0, 0]))
    assert abs(found.offsets[0]) < 0.2


def test_a_fit_moves_no_score_past_another() -> None:
    logits, accepted = overconfident(3_000)
    for fitted in (temperatures, with_offsets):
        moved = fitted(logits, accepted).logits(logits)
        assert conditional_ranking(logits, accepted) == conditional_ranking(moved, accepted)


def test_ranking_counts_pairs_and_gives_half_for_equals() -> None:
    assert ranking(np.array([0.9, 0.2, 0.5, 0.5]), np.array([1.0, 0.0, 1.0, 0.0])) == pytest.approx(
        3.5 / 4
    )
    assert ranking(np.array([0.1, 0.9]), np.array([1.0, 0.0])) == 0.0
    assert np.isnan(ranking(np.array([0.1, 0.9]), np.array([1.0, 1.0])))


def test_each_slot_is_ranked_among_the_rounds_that_reached_it() -> None:
    logits = np.array([[1.0, 5.0], [2.0, 1.0], [3.0, 2.0], [4.0, 0.0]])
    accepted = np.array([0, 1, 2, 2])
    # Slot 2 was reached by the last three: kept at 2 and 0, lost at 1.
    assert conditional_ranking(logits, accepted) == [1.0, 0.5]
