"""Sequential temperature scaling: one temperature per slot, left to right.

T_k minimises the calibration error of (prod_{i<k} c_i) * sigmoid(z_k / T_k) against "slots 1..k were all
accepted", with the temperatures of the slots before it frozen. Pure numbers; n rounds, k slots.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
BINS = 20
TOLERANCE = 0.002  # errors this close are not told apart by a few thousand rounds
GRID: Floats = np.exp(np.linspace(np.log(0.2), np.log(8.0), 241))


def sigmoid(z: Floats) -> Floats:
    chances: Floats = 0.5 * (1.0 + np.tanh(0.5 * z))
    return chances


def calibration_error(predicted: Floats, label: Floats) -> float:
    """Count-weighted |mean prediction - mean label| over equal-width bins; [n] each."""
    bins = np.minimum((np.clip(predicted, 1e-8, 1 - 1e-8) * BINS).astype(int), BINS - 1)
    gap = np.bincount(bins, predicted - label, minlength=BINS)
    return float(np.abs(gap).sum() / max(1, len(label)))


@dataclass(frozen=True, slots=True)
class Fit:
    temperatures: tuple[float, ...]
    before: tuple[float, ...]  # calibration error by slot with all temperatures 1
    after: tuple[float, ...]


def survival(logits: Floats, temperatures: tuple[float, ...]) -> Floats:
    """Predicted chance that slots 1..k are all accepted: [n, k]."""
    chances = sigmoid(logits / np.asarray(temperatures))
    products: Floats = np.cumprod(chances, axis=-1, dtype=np.float64)
    return products


def gentlest(errors: list[float]) -> float:
    """Of the temperatures that are as good as the best one, the one nearest to 1: noise moves nothing."""
    good = GRID[np.array(errors) <= min(errors) + TOLERANCE]
    return float(good[np.argmin(np.abs(np.log(good)))])


def fit(logits: Floats, accepted: npt.NDArray[np.int64]) -> Fit:
    """logits [n, k] raw confidence, accepted [n] slots kept -> temperatures and errors by slot."""
    size = logits.shape[1]
    labels = (accepted[:, None] > np.arange(size)).astype(np.float64)
    alive = np.ones(len(logits))
    found: list[float] = []
    for slot in range(size):
        errors = [calibration_error(alive * sigmoid(logits[:, slot] / t), labels[:, slot]) for t in GRID]
        found.append(gentlest(errors))
        alive = alive * sigmoid(logits[:, slot] / found[-1])

    def errors_at(temperatures: tuple[float, ...]) -> tuple[float, ...]:
        predicted = survival(logits, temperatures)
        return tuple(calibration_error(predicted[:, k], labels[:, k]) for k in range(size))

    chosen = tuple(found)
    return Fit(chosen, errors_at((1.0,) * size), errors_at(chosen))
