"""Running estimates of durations from finished rounds: a mean, and a straight line with a prior. Pure numbers.

One stall must not move an estimate far, one size that happened to be slow must not become a size that is never chosen
again: observations are clipped against what was expected, and a line has two parameters for all sizes together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CLIP = 3.0  # an observation counts as at most this many times, and at least this part of, what was expected
STIFFNESS = 0.0002  # variance of x, relative to its mean squared, from which on data outweigh the prior slope
STEEPEST = 4.0  # the slope stays within this factor of the prior's


@dataclass(slots=True)
class Running:
    """Exponential mean of a duration in seconds; 0 until the first observation."""

    seconds: float = 0.0
    weight: float = 0.05
    seen: bool = False

    def observe(self, seconds: float) -> None:
        sane = max(seconds, 0.0)
        if self.seen and self.seconds > 0.0:
            sane = min(sane, CLIP * self.seconds)
        self.seconds += (self.weight if self.seen else 1.0) * (sane - self.seconds)
        self.seen = True


class Line:
    """y = offset + slope x by exponentially weighted least squares, drawn towards a prior slope of share * y/x.

    With one x only the slope cannot be told from data, and the prior stands: at share 1, y in proportion to x.
    """

    def __init__(self, *, share: float = 1.0, weight: float = 0.02, credit: int = 4) -> None:
        self._share, self._weight = share, weight
        self._credit = credit  # observations that y = x, where nothing else is known, is worth
        self._count = 0
        self._x = self._y = self._xx = self._xy = 0.0  # means, variance, covariance

    @property
    def seen(self) -> bool:
        return self._count > 0

    @property
    def slope(self) -> float:
        if self._x <= 0.0 or self._y <= 0.0:
            return 1.0 if self._credit else 0.0
        prior = self._share * self._y / self._x
        stiff = STIFFNESS * self._x * self._x
        fitted = (self._xy + stiff * prior) / (self._xx + stiff)
        return min(max(fitted, prior / STEEPEST), prior * STEEPEST)

    @property
    def offset(self) -> float:
        return self._y - self.slope * self._x

    def at(self, x: float) -> float:
        return self.offset + self.slope * x

    def observe(self, x: float, y: float) -> None:
        if not (math.isfinite(x) and math.isfinite(y) and x > 0.0 and y > 0.0):
            return
        if self._count == 0:
            self._x, self._y = x, x if self._credit else y
        else:
            expected = max(self.at(x), 0.0)
            y = min(max(y, expected / CLIP), CLIP * expected) if expected else y
        self._count += 1
        weight = max(self._weight, 1.0 / (self._count + self._credit))
        dx, dy = x - self._x, y - self._y
        self._x += weight * dx
        self._y += weight * dy
        self._xx = (1.0 - weight) * (self._xx + weight * dx * dx)
        self._xy = (1.0 - weight) * (self._xy + weight * dx * dy)
