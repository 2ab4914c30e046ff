"""What a step costs: measured seconds by (tokens, context), made convex, gently corrected while serving.

Pure numbers. Early stop needs a convex non-decreasing curve: on a stair it would stop at the first riser. Each
measured column is therefore replaced by its greatest convex minorant (slopes pooled until they rise), lifted so that
its mean stays that of the measurements. Corrections use finished rounds only, so they never peek.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coordinator.prefix_scheduler import StepSeconds

Floats = npt.NDArray[np.float64]

LEAST_SECONDS = 1e-7  # a step is never free, so that rates stay finite
CORRECTION_WEIGHT = 0.02  # share of one observation in the running correction
CORRECTION_BOUND = 4.0  # the correction stays within this factor either way


def convex_fit(x: Floats, y: Floats) -> Floats:
    """Convex non-decreasing values at `x` (ascending), mean residual 0 against `y`."""
    if len(x) < 2:
        return y.copy()
    pools: list[tuple[float, float]] = []  # (width, rise), slopes ascending
    for width, rise in zip(np.diff(x), np.diff(y), strict=True):
        pools.append((float(width), float(rise)))
        while len(pools) > 1 and pools[-2][1] * pools[-1][0] >= pools[-1][1] * pools[-2][0]:
            (w1, r1), (w0, r0) = pools.pop(), pools.pop()
            pools.append((w0 + w1, r0 + r1))
    ends = x[0] + np.cumsum([width for width, _ in pools])
    slopes = np.maximum([rise / width for width, rise in pools], 0.0)
    at = np.minimum(np.searchsorted(ends, x[1:], side="left"), len(slopes) - 1)
    fit = np.concatenate(([0.0], np.cumsum(slopes[at] * np.diff(x))))
    lifted: Floats = fit + (y - fit).mean()
    return lifted


class CostCurve:
    """Seconds of one step on a grid, interpolated; beyond the grid the last slope goes on."""

    def __init__(self, tokens: Sequence[int], contexts: Sequence[int], seconds: Sequence[float]) -> None:
        self._tokens = np.asarray(tokens, np.float64)
        self._contexts = np.asarray(contexts, np.float64)
        grid = np.asarray(seconds, np.float64)
        if len(tokens) == 0 or len(contexts) == 0 or grid.shape != (len(tokens) * len(contexts),):
            raise ValueError("seconds must have one value per (tokens, contexts) pair")
        if not (np.isfinite(grid).all() and (grid > 0).all()):
            raise ValueError("seconds must be finite and above 0")
        if (np.diff(self._tokens) <= 0).any() or (np.diff(self._contexts) <= 0).any():
            raise ValueError("tokens and contexts must ascend")
        columns = grid.reshape(len(tokens), len(contexts))
        self._fit = np.stack([convex_fit(self._tokens, columns[:, c]) for c in range(len(contexts))], axis=1)
        self.correction = 1.0

    def column(self, context: float) -> StepSeconds:
        """Tokens -> seconds at one context length; convex, because columns are mixed with weights that are not."""
        at = float(np.clip(context, self._contexts[0], self._contexts[-1]))
        right = int(np.clip(np.searchsorted(self._contexts, at), 1, max(len(self._contexts) - 1, 1)))
        if len(self._contexts) == 1:
            values = self._fit[:, 0]
        else:
            share = (at - self._contexts[right - 1]) / (self._contexts[right] - self._contexts[right - 1])
            values = (1.0 - share) * self._fit[:, right - 1] + share * self._fit[:, right]
        values = values * self.correction
        x = self._tokens
        slope = (values[-1] - values[-2]) / (x[-1] - x[-2]) if len(x) > 1 else 0.0

        def seconds(tokens: Floats) -> Floats:
            inside = np.interp(tokens, x, values)
            beyond: Floats = np.maximum(tokens - x[-1], 0.0)
            step: Floats = np.maximum(inside + slope * beyond, LEAST_SECONDS)
            return step

        return seconds

    def seconds(self, tokens: float, context: float) -> float:
        return float(self.column(context)(np.array([tokens], np.float64))[0])

    def grid(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, contexts and the seconds in force, [tokens, contexts] in row-major order."""
        seconds = (self._fit * self.correction).ravel().tolist()
        return [int(t) for t in self._tokens], [int(c) for c in self._contexts], seconds

    def observe(self, tokens: float, context: float, seconds: float) -> None:
        """Move the correction a little towards what a finished step took."""
        if not (seconds > 0.0 and np.isfinite(seconds)):
            return
        ratio = seconds / (self.seconds(tokens, context) / self.correction)
        ratio = min(max(ratio, 1.0 / CORRECTION_BOUND), CORRECTION_BOUND)  # one stall must not move it far
        self.correction += CORRECTION_WEIGHT * (ratio - self.correction)


@dataclass(slots=True)
class Running:
    """Exponential mean of a duration in seconds; 0 until the first observation."""

    seconds: float = 0.0
    weight: float = 0.05
    seen: bool = False

    def observe(self, seconds: float) -> None:
        sane = max(seconds, 0.0)
        self.seconds += (self.weight if self.seen else 1.0) * (sane - self.seconds)
        self.seen = True


class StepCost:
    """Time of a whole round of one lane: draft + verification + hops."""

    def __init__(self, verify: CostCurve | None) -> None:
        self.verify = verify  # None: greedy verifies everything, and the lane says so
        self.draft_hops = Running()  # round trips less device time
        self.verify_hops = Running()

    def of_round(self, context: float, draft_s: float) -> StepSeconds | None:
        """Tokens in the verification -> seconds of the round, or None without a measured curve."""
        if self.verify is None:
            return None
        verify = self.verify.column(context)
        other = draft_s + self.draft_hops.seconds + self.verify_hops.seconds
        return lambda tokens: verify(tokens) + other
