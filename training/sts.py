"""Sequential temperature scaling: one temperature per slot, left to right.

T_k minimises the calibration error of (prod_{i<k} c_i) * sigmoid(z_k / T_k) against "slots 1..k were all
accepted", with the temperatures of the slots before it frozen. Pure numbers; n rounds, k slots.
"""

from __future__ import annotations

import numpy as np

from training.reliability import Floats, Ints, calibration_error, labels, sigmoid

GRID: Floats = np.exp(np.linspace(np.log(0.2), np.log(8.0), 241))
# Errors that n rounds do not tell apart: a share of the noise of a frequency, 0.5 / sqrt(n).
TOLERANCE = 0.25


def gentlest(errors: list[float], tolerance: float) -> float:
    """Of the temperatures that are as good as the best one, the one nearest to 1: noise moves nothing."""
    good = GRID[np.array(errors) <= min(errors) + tolerance]
    return float(good[np.argmin(np.abs(np.log(good)))])


def fit(logits: Floats, accepted: Ints) -> tuple[float, ...]:
    """logits [n, k] raw confidence, accepted [n] slots kept, n > 0 -> temperatures by slot."""
    label = labels(accepted, logits.shape[1])
    tolerance = TOLERANCE * 0.5 / len(logits) ** 0.5
    alive = np.ones(len(logits))
    found: list[float] = []
    for slot in range(logits.shape[1]):
        errors = [calibration_error(alive * sigmoid(logits[:, slot] / t), label[:, slot]) for t in GRID]
        found.append(gentlest(errors, tolerance))
        alive = alive * sigmoid(logits[:, slot] / found[-1])
    return tuple(found)
