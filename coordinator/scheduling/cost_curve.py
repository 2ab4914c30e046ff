"""What a step costs: measured seconds by (tokens, context), corrected while serving. Pure numbers.

Two readings of one measurement. `stairs` is the measurement itself, made non-decreasing: for decisions that search all
sizes. `column` is its convex fit: early stop needs one, for on a stair it would stop at the first riser; slopes are
pooled until they rise (greatest convex minorant) and the result is lifted so that its mean stays that of the
measurements. What finished steps really took moves offset and slope of both readings together, so that the scheduler
trades tokens at the price they have now. Corrections use finished rounds only, so they never peek.

A measured step spreads its tokens over as few sequences as hold them; a cohort's step may have more, and each of those
costs its attention besides. Where the curve says how much, a step is asked for by (tokens, sequences): tokens that are
added to the same sequences are then cheaper than tokens that bring sequences along.

Tokens of prompts that ride along are tokens of the step, too, but they may cost less than verified ones (nothing is
drawn after them) or more. What they cost is learned apart: taken for the others' price, cheap prompts in every other
step would make verified tokens look cheap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coordinator.scheduling.prefix_scheduler import StepSeconds
from coordinator.scheduling.running_fit import Line

Floats = npt.NDArray[np.float64]
Points = tuple[list[float], list[float], list[list[float]]]  # tokens, contexts, seconds by both

LEAST_SECONDS = 1e-7  # a step is never free, so that rates stay finite


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

    def __init__(
        self,
        tokens: Sequence[int],
        contexts: Sequence[int],
        seconds: Sequence[float],
        *,
        sequence_seconds: Sequence[float] = (),  # [contexts] of one more sequence in a step of as many tokens
        tokens_per_sequence: int = 0,  # of the measured steps; 0: sequences cost nothing by themselves
    ) -> None:
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
        self._stairs: Floats = np.maximum.accumulate(columns, axis=0)
        self._fit = np.stack([convex_fit(self._tokens, columns[:, c]) for c in range(len(contexts))], axis=1)
        self._per_sequence = max(tokens_per_sequence, 1)
        self._more = np.zeros(len(contexts))
        if tokens_per_sequence and len(sequence_seconds) == len(contexts) and np.isfinite(sequence_seconds).all():
            self._more = np.maximum(sequence_seconds, 0.0)
        self._points: Points = (self._tokens.tolist(), self._contexts.tolist(), self._stairs.tolist())
        self.live = Line()  # from measured seconds to those of finished steps

    def column(self, context: float, sequences: float = 0.0) -> StepSeconds:
        """Tokens -> seconds at one context length; convex, because columns are mixed with weights that are not."""
        return self._read(self._fit, context, sequences, convex=True)

    def stairs(self, context: float, sequences: float = 0.0) -> StepSeconds:
        """Tokens -> seconds at one context length, as measured."""
        return self._read(self._stairs, context, sequences, convex=False)

    def seconds(self, tokens: float, context: float, sequences: float = 0.0, ridden: float = 0.0) -> float:
        """What a step of this size is expected to take; `ridden` of its tokens are of prompts."""
        return max(self.live.at(*self._parts(tokens, context, sequences, ridden)), LEAST_SECONDS)

    def riding(self, ridden: float, context: float, sequences: float, own: float) -> float:
        """Seconds that so many tokens of prompts take more than as many others, in a step with `own` tokens besides."""
        if not ridden:
            return 0.0
        fit, (_, more) = self.live.fit, self._parts(own + ridden, context, sequences, ridden)
        return (fit.other - fit.slope) * more

    def grid(self) -> tuple[list[int], list[int], list[float]]:
        """Tokens, contexts and the convex seconds in force, [tokens, contexts] in row-major order."""
        fit = self.live.fit
        live = np.maximum(fit.offset + fit.slope * self._fit, LEAST_SECONDS)
        return [int(t) for t in self._tokens], [int(c) for c in self._contexts], live.ravel().tolist()

    def observe(
        self, tokens: float, context: float, seconds: float, sequences: float = 0.0, ridden: float = 0.0
    ) -> None:
        """Move the correction a little towards what a finished step took."""
        own, more = self._parts(tokens, context, sequences, ridden)
        self.live.observe(own, seconds, more)

    def measured(self, tokens: float, context: float, sequences: float = 0.0) -> float:
        """What a step of this size took when the curve was measured."""
        more = max(sequences - max(tokens / self._per_sequence, 1.0), 0.0)
        return self._point(tokens, context) + (self._each(context) * more if more else 0.0)

    def _parts(self, tokens: float, context: float, sequences: float, ridden: float) -> tuple[float, float]:
        """By the measured curve, seconds of the tokens that are no prompts', and what the others add."""
        whole = self.measured(tokens, context, sequences)
        own = self.measured(tokens - ridden, context, sequences) if ridden else whole
        return own, max(whole - own, 0.0)

    def _each(self, context: float) -> float:
        return float(np.interp(context, self._contexts, self._more))

    def _point(self, tokens: float, context: float) -> float:
        """One point of the stairs; without arrays, for it is asked for many times a round."""
        x, y, grid = self._points
        right = min(max(bisect_left(x, tokens), 1), len(x) - 1) if len(x) > 1 else 0
        above = min(max(bisect_left(y, context), 1), len(y) - 1) if len(y) > 1 else 0
        share_y = min(max((context - y[above - 1]) / (y[above] - y[above - 1]), 0.0), 1.0) if above else 0.0

        def at(index: int) -> float:
            row = grid[index]
            return row[0] if not above else (1.0 - share_y) * row[above - 1] + share_y * row[above]

        if not right:
            return at(0)
        share = max((tokens - x[right - 1]) / (x[right] - x[right - 1]), 0.0)
        low, high = at(right - 1), at(right)
        return low + share * (high - low)

    def _read(self, grid: Floats, context: float, sequences: float, *, convex: bool) -> StepSeconds:
        x, fit = self._tokens, self.live.fit
        column = self._at(grid, context)
        if sequences > 1.0 and (each := self._each(context)):
            column = column + each * np.maximum(sequences - np.maximum(x / self._per_sequence, 1.0), 0.0)
            if len(x) > 1:  # what is measured twice, and with noise, may not shrink by growing
                steps = np.maximum(np.diff(column) / np.diff(x), 0.0)
                steps = np.maximum.accumulate(steps) if convex else steps
                column = column[0] + np.concatenate(([0.0], np.cumsum(steps * np.diff(x))))
        values = fit.offset + fit.slope * column

        def seconds(tokens: Floats) -> Floats:
            step: Floats = np.maximum(_extended(x, values, tokens), LEAST_SECONDS)
            return step

        return seconds

    def _at(self, grid: Floats, context: float) -> Floats:
        """One column of a grid, between two measured contexts a mixture of theirs."""
        if len(self._contexts) == 1:
            return grid[:, 0]
        at = min(max(context, float(self._contexts[0])), float(self._contexts[-1]))
        right = min(max(int(np.searchsorted(self._contexts, at)), 1), len(self._contexts) - 1)
        share = (at - self._contexts[right - 1]) / (self._contexts[right] - self._contexts[right - 1])
        mixed: Floats = (1.0 - share) * grid[:, right - 1] + share * grid[:, right]
        return mixed


def _extended(x: Floats, values: Floats, tokens: Floats) -> Floats:
    """Interpolation that goes on with the last slope."""
    inside = np.interp(tokens, x, values)
    if len(x) < 2 or not len(tokens) or tokens.max() <= x[-1]:
        return inside
    slope = max(float(values[-1] - values[-2]), 0.0) / float(x[-1] - x[-2])
    beyond: Floats = inside + slope * np.maximum(tokens - x[-1], 0.0)
    return beyond
