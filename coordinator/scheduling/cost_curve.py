"""What a step costs: measured seconds by (tokens, context), corrected while serving. Pure numbers.

Two readings of one measurement. `stairs` is the measurement itself, for decisions that search all sizes. `column` is
its convex fit: early stop needs one, for on a stair it would stop at the first riser; slopes are pooled until they rise
(greatest convex minorant) and the result is lifted so that its mean stays that of the measurements. What finished steps
really took moves offset and slope of both readings together, so that the scheduler trades tokens at the price they have
now. Corrections use finished rounds only, so they never peek.

Invariant: whatever was measured and whatever finished steps took, a step takes a positive time that never falls with
tokens, with context or with sequences. A reading is made of parts of which each has that property and sums, maxima and
mixtures keep it; far from what was seen, a correction changes a measured time by a bounded factor.

A measured step spreads its tokens over as few sequences as hold them; a cohort's step may have more, and each of those
costs its attention besides. Where the curve says how much, a step is asked for by (tokens, sequences): tokens that are
added to the same sequences are then cheaper than tokens that bring sequences along.

Tokens of prompts that ride along are tokens of the step, too, but they may cost less than verified ones (nothing is
drawn after them) or more. What they cost is learned apart: taken for the others' price, cheap prompts in every other
step would make verified tokens look cheap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coordinator.scheduling.running_fit import Line
from dspark.rounds.schedule import StepSeconds
from dspark.runtime.cost_grid import never_falling

Floats = npt.NDArray[np.float64]
Points = tuple[list[float], list[float], list[list[float]]]  # tokens, contexts, seconds by both

LEAST_SECONDS = 1e-7  # a step is never free, so that rates stay finite
FAR = 1 << 20  # tokens beyond the grid to which its last slope goes on


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
    """Seconds of one step on a grid, interpolated; beyond the most tokens the last slope goes on."""

    def __init__(
        self,
        tokens: Sequence[int],
        contexts: Sequence[int],
        seconds: Sequence[float],
        *,
        sequence_seconds: Sequence[float] = (),  # [contexts] of one more sequence in a step of as many tokens
        tokens_per_sequence: int = 0,  # of the measured steps; 0: sequences cost nothing by themselves
        borrowed: Sequence[int] = (),  # places in `seconds` that hold a neighbour's value
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
        self.borrowed = tuple(borrowed)
        stairs = never_falling(grid.reshape(len(tokens), len(contexts)))
        fits = [convex_fit(self._tokens, column) for column in stairs.T]
        fit = np.maximum.accumulate(np.stack(fits, axis=1), axis=1)  # of convex ones the largest is, too
        self._stairs, self._fit = (_going_on(self._tokens, each) for each in (stairs, fit))
        self._tokens = np.append(self._tokens, self._tokens[-1] + FAR)  # [t + 1], and so are the rows of both readings
        self._per_sequence = max(tokens_per_sequence, 1)
        self._filled = np.maximum(self._tokens / self._per_sequence, 1.0)  # sequences that the tokens fill
        self._more = np.zeros(len(contexts))
        if tokens_per_sequence and len(sequence_seconds) == len(contexts) and np.isfinite(sequence_seconds).all():
            self._more = np.maximum.accumulate(np.maximum(sequence_seconds, 0.0))
        # What a step of these tokens takes without the sequences that fill it, never falling with tokens.
        bare = np.maximum.accumulate(self._stairs - self._filled[:, None] * self._more, axis=0)
        self._points: Points = (self._tokens.tolist(), self._contexts.tolist(), self._stairs.tolist())
        self._without: list[list[float]] = bare.tolist()
        self._each: list[float] = self._more.tolist()
        self.live = Line()  # from measured seconds to those of finished steps

    def column(self, context: float, sequences: float = 0.0) -> StepSeconds:
        """Tokens -> seconds at one context length; convex, because columns are mixed with weights that are not."""
        grid = self._fit
        if sequences > 1.0 and self._more.any():
            grid = grid + self._spread(sequences)
            # Sequences that tokens bring along take their price off the slope, as far as there is one.
            widths = np.diff(self._tokens)[:, None]
            slopes = np.maximum.accumulate(np.maximum(np.diff(grid, axis=0) / widths, 0.0), axis=0)
            grid = grid[0] + np.concatenate((np.zeros((1, grid.shape[1])), np.cumsum(slopes * widths, axis=0)))
            grid = np.maximum.accumulate(grid, axis=1)
        return self._read(grid, context)

    def stairs(self, context: float, sequences: float = 0.0) -> StepSeconds:
        """Tokens -> seconds at one context length, as measured."""
        grid = self._stairs
        if sequences > 1.0 and self._more.any():
            grid = np.maximum.accumulate(grid + self._spread(sequences), axis=0)
        return self._read(grid, context)

    def _spread(self, sequences: float) -> Floats:
        """[t, c] seconds of sequences beyond those that the tokens fill."""
        return np.maximum(sequences - self._filled, 0.0)[:, None] * self._more

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
        live = np.maximum(self.live.fit.of(self._fit[:-1]), LEAST_SECONDS)
        return [int(t) for t in self._tokens[:-1]], [int(c) for c in self._contexts], live.ravel().tolist()

    def observe(
        self, tokens: float, context: float, seconds: float, sequences: float = 0.0, ridden: float = 0.0
    ) -> None:
        """Move the correction a little towards what a finished step took."""
        own, more = self._parts(tokens, context, sequences, ridden)
        self.live.observe(own, seconds, more)

    def measured(self, tokens: float, context: float, sequences: float = 0.0) -> float:
        """What a step of this size took when the curve was measured."""
        x, y, _ = self._points
        right = min(max(bisect_left(x, tokens), 1), len(x) - 1)
        above = min(max(bisect_left(y, context), 1), len(y) - 1) if len(y) > 1 else 0
        share_y = min(max((context - y[above - 1]) / (y[above] - y[above - 1]), 0.0), 1.0) if above else 0.0
        low, high = (self._node(row, above, share_y, sequences) for row in (right - 1, right))
        return low + min(max((tokens - x[right - 1]) / (x[right] - x[right - 1]), 0.0), 1.0) * (high - low)

    def _node(self, row: int, above: int, share: float, sequences: float) -> float:
        """`stairs` at one size and between two contexts; without arrays, for it is asked for many times a round."""
        at = self._cell(row, above, sequences)
        return at if not above else (1.0 - share) * self._cell(row, above - 1, sequences) + share * at

    def _cell(self, row: int, column: int, sequences: float) -> float:
        sizes, _, grid = self._points
        each, found = self._each[column], grid[row][column]
        if not each or sequences <= 1.0:
            return found
        # The dearest of this size and smaller ones with so many sequences: of those that are not full, and of itself.
        within = min(bisect_right(sizes, sequences * self._per_sequence) - 1, row)
        return found if within < 0 else max(found, self._without[within][column] + each * sequences)

    def _parts(self, tokens: float, context: float, sequences: float, ridden: float) -> tuple[float, float]:
        """By the measured curve, seconds of the tokens that are no prompts', and what the others add."""
        whole = self.measured(tokens, context, sequences)
        own = self.measured(tokens - ridden, context, sequences) if ridden else whole
        return own, max(whole - own, 0.0)

    def _read(self, grid: Floats, context: float) -> StepSeconds:
        x, values = self._tokens, self.live.fit.of(self._at(grid, context))

        def seconds(tokens: Floats) -> Floats:
            step: Floats = np.maximum(np.interp(tokens, x, values), LEAST_SECONDS)
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


def _going_on(tokens: Floats, seconds: Floats) -> Floats:
    """[t, c] -> [t + 1, c], the last row `FAR` tokens on by the last slope, which no shorter context has steeper."""
    slope = (seconds[-1] - seconds[-2]) / (tokens[-1] - tokens[-2]) if len(tokens) > 1 else np.zeros(seconds.shape[1])
    return np.vstack((seconds, np.maximum.accumulate(seconds[-1] + FAR * slope)))
