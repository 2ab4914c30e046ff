"""Step times from a table: seconds of one pass by its size and the context length.

Between listed sizes time is interpolated, or, with stairs, is that of the next listed size, as with
padded graph captures. Between contexts it is interpolated. Past the last size the last slope
continues; past the ends of the contexts the end value holds.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from dspark.runtime.cost_store import Curve

LEAST_SECONDS = 1e-7


@dataclass(frozen=True, slots=True)
class StepTable:
    """A table of the seconds of a pass, by size and context."""

    sizes: tuple[int, ...]  # [t] tokens or sequences, ascending
    contexts: tuple[int, ...]  # [c] ascending
    rows: tuple[tuple[float, ...], ...]  # [t][c] seconds
    stairs: bool = False

    def seconds(self, size: float, context: float) -> float:
        """Seconds of one pass of `size` at this context."""
        at = bisect_left(self.sizes, size)
        if at < len(self.sizes) and (self.stairs or self.sizes[at] == size or at == 0):
            return self._at(at, context)
        if len(self.sizes) == 1:
            return self._at(0, context)
        right = min(at, len(self.sizes) - 1)
        low, high = self.sizes[right - 1], self.sizes[right]
        before, after = self._at(right - 1, context), self._at(right, context)
        return max(before + (after - before) * (size - low) / (high - low), LEAST_SECONDS)

    def announced(self) -> tuple[list[int], list[int], list[list[float]]]:
        """(sizes, contexts, seconds) as measured: stairs have a point at both of their edges."""
        sizes = (
            sorted({*self.sizes, *(size + 1 for size in self.sizes[:-1])})
            if self.stairs
            else list(self.sizes)
        )
        sizes = [size for size in sizes if size > 0]
        contexts = list(self.contexts)
        return (
            sizes,
            contexts,
            [[self.seconds(size, context) for context in contexts] for size in sizes],
        )

    def curve(self) -> Curve:
        """The table as a measured one is announced."""
        sizes, contexts, seconds = map(np.array, self.announced())
        return Curve(sizes, contexts, seconds, "synthetic")

    def _at(self, row: int, context: float) -> float:
        return float(np.interp(context, self.contexts, self.rows[row]))
