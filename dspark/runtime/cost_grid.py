"""Measured step times on a grid of tokens by contexts that cannot be nonsense: complete, positive, never falling.

A larger step and a longer context cannot take less time: where medians say so it is noise, and what was measured is
bent as little from above as from below. A point that nobody measured takes the value of its neighbour and is marked as
borrowed; it bends nothing that was measured.

Symbols: t tokens (or sequences of a drafter), c contexts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Grid(NamedTuple):
    """Seconds of a step."""

    tokens: npt.NDArray[np.int64]  # [t] ascending
    contexts: npt.NDArray[np.int64]  # [c] ascending
    seconds: Floats  # [t, c] above 0, non-decreasing in both
    borrowed: tuple[int, ...]  # places in row-major order that were not measured


def grid_of(samples: Mapping[tuple[int, int], Sequence[float]]) -> Grid | None:
    """From seconds by (tokens, context), any of which may be missing; medians count. None without any that a clock
    can have said."""
    medians = {
        point: float(np.median(sound))
        for point, taken in samples.items()
        if (sound := [each for each in taken if math.isfinite(each) and each > 0.0])
    }
    if not medians:
        return None
    tokens, contexts = (sorted({point[axis] for point in medians}) for axis in (0, 1))
    seconds = np.array([[medians.get((t, c), math.nan) for c in contexts] for t in tokens])
    borrowed = tuple(np.flatnonzero(np.isnan(seconds)).tolist())
    return Grid(np.array(tokens), np.array(contexts), completed(never_falling(seconds)), borrowed)


def never_falling(seconds: Floats) -> Floats:
    """The measured points [t, c] between the least and the most that keeps them in order; NaN stays NaN."""
    least = np.fmax.accumulate(np.fmax.accumulate(seconds, axis=0), axis=1)
    most = _from_above(seconds)
    between: Floats = np.where(np.isnan(seconds), np.nan, least + (most - least) / 2.0)
    return between


def completed(seconds: Floats) -> Floats:
    """Every NaN of [t, c] as the dearest smaller point, or, where there is none, the cheapest larger one."""
    from_below = np.fmax.accumulate(np.fmax.accumulate(seconds, axis=0), axis=1)
    filled = np.where(np.isnan(seconds), from_below, seconds)
    whole: Floats = np.where(np.isnan(filled), _from_above(filled), filled)
    return whole


def _from_above(seconds: Floats) -> Floats:
    """The cheapest of all points that are at least as large."""
    turned = np.fmin.accumulate(np.fmin.accumulate(seconds[::-1, ::-1], axis=0), axis=1)
    back: Floats = turned[::-1, ::-1]
    return back
