"""Sequential temperature scaling repairs scores that are wrong by a temperature."""

import numpy as np

from training.sts import calibration_error, fit, sigmoid, survival


def overconfident(n: int = 20_000) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Logits twice too large and the accepted lengths that the true ones give."""
    rng = np.random.default_rng(0)
    true = rng.normal(1.0, 1.5, (n, 5))
    accepted = np.cumprod(rng.random((n, 5)) < sigmoid(true), axis=1).sum(axis=1)
    return 2.0 * true, accepted


def test_scaling_finds_the_temperature_and_lowers_the_error() -> None:
    logits, accepted = overconfident()
    found = fit(logits, accepted)
    assert all(1.4 < temperature < 2.5 for temperature in found.temperatures)
    assert all(after < before / 2 for before, after in zip(found.before, found.after, strict=True))
    assert max(found.after) < 0.02


def test_survival_never_increases_along_a_block() -> None:
    logits, accepted = overconfident(500)
    predicted = survival(logits, fit(logits, accepted).temperatures)
    assert (np.diff(predicted, axis=1) <= 0).all()


def test_a_right_prediction_has_no_error() -> None:
    assert calibration_error(np.array([0.5, 0.5, 0.0, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])) < 1e-6
