"""How good predicted chances are: calibration error, ranking, and pictures of both. Pure numbers; n rounds, k slots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dspark.model.calibration import SlotFit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
BINS = 20
LEAST = 20  # rounds of a bin that is worth a dot


def sigmoid(z: Floats) -> Floats:
    chances: Floats = 0.5 * (1.0 + np.tanh(0.5 * z))
    return chances


def survival(logits: Floats, fit: SlotFit | None = None) -> Floats:
    """Raw confidence logits [n, k] -> predicted chance that slots 1..k are all accepted [n, k]; None: as they are."""
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
    """Area under the curve: the chance that an accepted one scores above a rejected one, one half among equals. [n]
    each; NaN of one kind."""
    right, wrong = label.sum(), (1.0 - label).sum()
    if not right or not wrong:
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2.0  # ranks from 1; equals share theirs
    return float(((middle[inverse] * label).sum() - right * (right + 1) / 2) / (right * wrong))


def by_slot(predicted: Floats, accepted: Ints) -> dict[str, list[float]]:
    """Survival [n, k] against what was accepted [n]: figures of every slot."""
    label = labels(accepted, predicted.shape[1])
    pairs = list(zip(predicted.T, label.T, strict=True))
    return {
        "ece": [calibration_error(p, y) for p, y in pairs],
        "auc": [ranking(p, y) for p, y in pairs],
        "mean_predicted": [float(p.mean()) if len(p) else 0.0 for p, _ in pairs],
        "mean_accepted": [float(y.mean()) if len(y) else 0.0 for _, y in pairs],
    }


def conditional_ranking(logits: Floats, accepted: Ints) -> list[float]:
    """Area under the curve of each slot's own score among the rounds that reached it: no fit changes it."""
    label = labels(accepted, logits.shape[1])
    reached = [accepted >= slot for slot in range(logits.shape[1])]
    return [ranking(logits[rows, slot], label[rows, slot]) for slot, rows in enumerate(reached)]


def diagram(panes: Mapping[str, Floats], accepted: Ints, path: Path, *, title: str = "") -> None:
    """Predicted against observed survival, one pane for each [n, k], every other slot; the name decides the format."""
    from dspark import plots

    figure, axes = plots.panels(len(panes), (4.4, 4.2))
    for pane, (name, predicted) in zip(axes, panes.items(), strict=True):
        _one(pane, predicted, accepted)
        pane.set_title(f"{title} {name}".strip(), fontsize=10)
    plots.write(figure, path)


def _one(axes: Any, predicted: Floats, accepted: Ints) -> None:
    for slot in range(0, predicted.shape[1], 2):
        bins, label = _bins(predicted[:, slot]), accepted > slot
        used = [b for b in range(BINS) if (bins == b).sum() >= LEAST]
        means = [predicted[bins == b, slot].mean() for b in used]
        axes.plot(means, [label[bins == b].mean() for b in used], marker=".", label=f"slot {slot + 1}")
    axes.plot((0, 1), (0, 1), color="grey", linewidth=0.7)
    axes.set_xlabel("predicted survival")
    axes.set_ylabel("observed survival")


def _bins(predicted: Floats) -> Ints:
    return np.minimum((np.clip(predicted, 1e-8, 1 - 1e-8) * BINS).astype(np.int64), BINS - 1)
