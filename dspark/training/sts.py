"""Sequential scaling: one map per slot, left to right, with the maps of the slots before it frozen. What is made right
is the chance that slots 1..k were all accepted, (prod_{i<k} c_i) * c_k. Pure numbers; n rounds, k slots.

`temperatures`  c_k = sigmoid(z_k / T_k), as published: T_k minimises the calibration error, on a grid
`with_offsets`  c_k = sigmoid(z_k / T_k + b_k): T_k and b_k minimise the log loss. A temperature leaves a chance of one
                half where it is, whatever really happens there; an offset does not.
"""

from __future__ import annotations

import numpy as np

from dspark.model.calibration import SlotFit
from dspark.training.reliability import Floats, Ints, calibration_error, labels, sigmoid

LEAST, MOST = 0.2, 8.0  # temperatures
GRID: Floats = np.exp(np.linspace(np.log(LEAST), np.log(MOST), 241))
# Errors that n rounds do not tell apart: a share of the noise of a frequency, 0.5 / sqrt(n).
TOLERANCE = 0.25
STIFFNESS = 10.0  # what leaving the raw logit costs: half of it by the square of (1 / T - 1) and of b, in nats
ITERATIONS = 40


def gentlest(errors: list[float], tolerance: float) -> float:
    """Of the temperatures that are as good as the best one, the one nearest to 1: noise moves nothing."""
    good = GRID[np.array(errors) <= min(errors) + tolerance]
    return float(good[np.argmin(np.abs(np.log(good)))])


def temperatures(logits: Floats, accepted: Ints) -> SlotFit:
    """logits [n, k] raw confidence, accepted [n] slots kept, n > 0."""
    label = labels(accepted, logits.shape[1])
    tolerance = TOLERANCE * 0.5 / len(logits) ** 0.5
    alive = np.ones(len(logits))
    found: list[float] = []
    for slot in range(logits.shape[1]):
        errors = [calibration_error(alive * sigmoid(logits[:, slot] / t), label[:, slot]) for t in GRID]
        found.append(gentlest(errors, tolerance))
        alive = alive * sigmoid(logits[:, slot] / found[-1])
    return SlotFit(tuple(found))


def with_offsets(logits: Floats, accepted: Ints) -> SlotFit:
    """logits [n, k] raw confidence, accepted [n] slots kept, n > 0."""
    label = labels(accepted, logits.shape[1])
    alive = np.ones(len(logits))
    found: list[tuple[float, float]] = []
    for slot in range(logits.shape[1]):
        slope, offset = _line(logits[:, slot], alive, label[:, slot])
        found.append((1.0 / slope, offset))
        alive = alive * sigmoid(slope * logits[:, slot] + offset)
    return SlotFit(*(tuple(column) for column in zip(*found, strict=True)))


def _line(z: Floats, alive: Floats, label: Floats) -> tuple[float, float]:
    """(slope, offset) of one slot by Fisher scoring, halving steps that overshoot; [n] each."""
    rows = np.stack([z, np.ones_like(z)])
    raw = np.array([1.0, 0.0])
    at, loss = raw, _loss(raw, z, alive, label)
    for _ in range(ITERATIONS):
        own = sigmoid(at @ rows)
        p = np.clip(alive * own, 1e-9, 1 - 1e-9)
        lost = (1 - own) / (1 - p)
        slope = rows @ ((p - label) * lost) + STIFFNESS * (at - raw)
        bend = (rows * (p * (1 - own) * lost)) @ rows.T + STIFFNESS * np.eye(2)
        step = np.linalg.solve(bend, slope)
        for _ in range(ITERATIONS):
            new = at - step
            new[0] = np.clip(new[0], 1 / MOST, 1 / LEAST)
            if (lower := _loss(new, z, alive, label)) <= loss:
                break
            step /= 2
        else:
            break
        gained, at, loss = loss - lower, new, lower
        if gained < 1e-6:
            break
    return float(at[0]), float(at[1])


def _loss(at: Floats, z: Floats, alive: Floats, label: Floats) -> float:
    p = np.clip(alive * sigmoid(at[0] * z + at[1]), 1e-9, 1 - 1e-9)
    return float(-np.log(np.where(label > 0, p, 1 - p)).sum() + 0.5 * STIFFNESS * ((at[0] - 1) ** 2 + at[1] ** 2))
