"""Measures and fits the calibration of confidence. Pure functions; n rounds, k slots.

Sequential scaling fits one map per slot, left to right, with the maps of the slots before it
frozen. It calibrates the chance that slots 1..k were all accepted, (prod_{i<k} c_i) * c_k:

`temperatures`  c_k = sigmoid(z_k / T_k), as published: T_k minimises the calibration error, on a
                grid
`with_offsets`  c_k = sigmoid(z_k / T_k + b_k): T_k and b_k minimise the log loss. A temperature
                cannot change a chance of one half; an offset can.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dspark import plots
from dspark.model.calibration import SlotFit, sigmoid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BINS = 20
DOTTED = 20  # fewest rounds of a bin that is plotted
LEAST, MOST = 0.2, 8.0  # range of temperatures
GRID: Floats = np.exp(np.linspace(np.log(LEAST), np.log(MOST), 241))
# Errors that n rounds do not distinguish: a share of the noise of a frequency, 0.5 / sqrt(n).
TOLERANCE = 0.25
# Penalty of a fit, in nats: half of this times ((1 / T - 1)^2 + b^2).
STIFFNESS = 10.0
ITERATIONS = 40


def survival(logits: Floats, fit: SlotFit | None = None) -> Floats:
    """Raw confidence logits [n, k] -> predicted chance that slots 1..k are all accepted [n, k];
    `fit` None: uncalibrated."""
    scaled = logits if fit is None else fit.logits(logits)
    products: Floats = np.cumprod(sigmoid(scaled), axis=-1, dtype=np.float64)
    return products


def labels(accepted: Ints, size: int) -> Floats:
    """accepted [n] -> 1.0 where slots 1..k were all accepted [n, k]."""
    return (accepted[:, None] > np.arange(size)).astype(np.float64)


def calibration_error(predicted: Floats, label: Floats) -> float:
    """Count-weighted |mean prediction - mean label| over equal-width bins; [n] each."""
    gap = np.bincount(_bins(predicted), predicted - label, minlength=BINS)
    return float(np.abs(gap).sum() / max(1, len(label)))


def ranking(scores: Floats, label: Floats) -> float:
    """Area under the ROC curve: the chance that an accepted slot scores above a rejected one, ties
    as one half. [n] each; NaN if all labels are equal."""
    right, wrong = label.sum(), (1.0 - label).sum()
    if not right or not wrong:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2.0  # ranks from 1; ties share theirs
    return float(((middle[inverse] * label).sum() - right * (right + 1) / 2) / (right * wrong))


def by_slot(predicted: Floats, accepted: Ints) -> dict[str, list[float]]:
    """Figures of every slot: predicted survival [n, k] against accepted slots [n]."""
    label = labels(accepted, predicted.shape[1])
    pairs = list(zip(predicted.T, label.T, strict=True))
    return {
        "ece": [calibration_error(p, y) for p, y in pairs],
        "auc": [ranking(p, y) for p, y in pairs],
        "mean_predicted": [float(p.mean()) if len(p) else 0.0 for p, _ in pairs],
        "mean_accepted": [float(y.mean()) if len(y) else 0.0 for _, y in pairs],
    }


def conditional_ranking(logits: Floats, accepted: Ints) -> list[float]:
    """Area under the ROC curve of each slot's own score among the rounds that reached it; no fit
    changes it."""
    label = labels(accepted, logits.shape[1])
    reached = [accepted >= slot for slot in range(logits.shape[1])]
    return [ranking(logits[rows, slot], label[rows, slot]) for slot, rows in enumerate(reached)]


def diagram(panes: Mapping[str, Floats], accepted: Ints, path: Path, *, title: str = "") -> None:
    """Plots predicted against observed survival, a pane for each [n, k], every other slot; the
    suffix of `path` decides the format."""
    figure, axes = plots.panels(len(panes), (4.4, 4.2))
    for pane, (name, predicted) in zip(axes, panes.items(), strict=True):
        for slot in range(0, predicted.shape[1], 2):
            bins, label = _bins(predicted[:, slot]), accepted > slot
            used = [b for b in range(BINS) if (bins == b).sum() >= DOTTED]
            means = [predicted[bins == b, slot].mean() for b in used]
            observed = [label[bins == b].mean() for b in used]
            pane.plot(means, observed, marker=".", label=f"slot {slot + 1}")
        pane.plot((0, 1), (0, 1), color="grey", linewidth=0.7)
        pane.set(xlabel="predicted survival", ylabel="observed survival")
        pane.set_title(f"{title} {name}".strip(), fontsize=10)
    plots.write(figure, path)


def _bins(predicted: Floats) -> Ints:
    return np.minimum((np.clip(predicted, 1e-8, 1 - 1e-8) * BINS).astype(np.int64), BINS - 1)


def gentlest(errors: list[float], tolerance: float) -> float:
    """The temperature nearest to 1 of those within the tolerance of the best, so that noise alone
    changes nothing."""
    good = GRID[np.array(errors) <= min(errors) + tolerance]
    return float(good[np.argmin(np.abs(np.log(good)))])


def temperatures(logits: Floats, accepted: Ints) -> SlotFit:
    """Fits temperatures: logits [n, k] raw confidence, accepted [n] slots kept, n > 0."""
    label = labels(accepted, logits.shape[1])
    tolerance = TOLERANCE * 0.5 / len(logits) ** 0.5
    alive = np.ones(len(logits))
    found: list[float] = []
    for slot in range(logits.shape[1]):
        errors = [
            calibration_error(alive * sigmoid(logits[:, slot] / t), label[:, slot]) for t in GRID
        ]
        found.append(gentlest(errors, tolerance))
        alive = alive * sigmoid(logits[:, slot] / found[-1])
    return SlotFit(tuple(found))


def with_offsets(logits: Floats, accepted: Ints) -> SlotFit:
    """Fits both: logits [n, k] raw confidence, accepted [n] slots kept, n > 0."""
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
        inside = np.clip(at[0] - step[0], 1 / MOST, 1 / LEAST)
        if inside != at[0] - step[0]:  # the best offset at the bound
            step[0] = at[0] - inside
            step[1] = (slope[1] - bend[1, 0] * step[0]) / bend[1, 1]
        for _ in range(ITERATIONS):
            new = at - step
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
    return float(
        -np.log(np.where(label > 0, p, 1 - p)).sum()
        + 0.5 * STIFFNESS * ((at[0] - 1) ** 2 + at[1] ** 2)
    )
