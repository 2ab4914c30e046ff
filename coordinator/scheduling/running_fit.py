"""Running estimates of durations from finished rounds: a mean, and a straight line with priors. Pure numbers.

One stall must not move an estimate far, one size that happened to be slow must not become a size that is never chosen
again: observations are clipped against what was expected, and a line has two parameters for all sizes together, or
three where a part of the size may have a price of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CLIP = 3.0  # an observation counts as at most this many times, and at least this part of, what was expected
STIFFNESS = 0.0002  # variance of x, relative to its mean squared, from which on data outweigh the prior slope
OTHER_STIFFNESS = 0.05  # the same of z, relative to its mean square where there is any: a few observations say little
STEEPEST = 4.0  # slopes stay within this factor of the prior's


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


class Fit(NamedTuple):
    """Of a line, which far below what was seen ends in one through nothing: y stays positive and never falls."""

    offset: float
    slope: float
    other: float  # slope of z
    least: float  # y/x is at least this

    def at(self, x: float, z: float = 0.0) -> float:
        return max(self.offset + self.slope * x + self.other * z, self.least * x)

    def of(self, x: Floats) -> Floats:
        """The same of many, without z."""
        y: Floats = np.maximum(self.offset + self.slope * x, self.least * x)
        return y


class Line:
    """y = offset + slope x + other z by exponentially weighted least squares, the slope drawn towards a prior of
    share * y/(x + z) and the other one towards it: without a sign of another price z is more of the same.

    With one x only the slope cannot be told from data, and the prior stands: at share 1, y in proportion to x.
    """

    def __init__(self, *, share: float = 1.0, weight: float = 0.02, credit: int = 4) -> None:
        self._share, self._weight = share, weight
        self._credit = credit  # observations that y = x + z, where nothing else is known, is worth
        self._count = 0
        self._x = self._y = self._z = 0.0  # means
        self._xx = self._xy = self._xz = self._zy = self._zz = 0.0  # variances, covariances
        self._size = 0.0  # mean square of z where there is any

    @property
    def seen(self) -> bool:
        return self._count > 0

    @property
    def fit(self) -> Fit:
        if self._x <= 0.0 or self._y <= 0.0:
            free = 1.0 if self._credit else 0.0
            return Fit(0.0, free, free, free)
        prior = self._share * self._y / (self._x + self._z)
        stiff, stiff_z = STIFFNESS * self._x * self._x, OTHER_STIFFNESS * self._size
        xx, xz, zz = self._xx + stiff, self._xz, self._zz + stiff_z
        xy, zy = self._xy + stiff * prior, self._zy + stiff_z * prior
        slope = (xy * zz - xz * zy) / (xx * zz - xz * xz) if zz else xy / xx
        slope = min(max(slope, prior / STEEPEST), prior * STEEPEST)
        other = (self._zy - slope * xz + stiff_z * slope) / zz if zz else slope
        other = min(max(other, 0.0), prior * STEEPEST)
        return Fit(self._y - slope * self._x - other * self._z, slope, other, prior / STEEPEST)

    def at(self, x: float, z: float = 0.0) -> float:
        return self.fit.at(x, z)

    def observe(self, x: float, y: float, z: float = 0.0) -> None:
        if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z) and x > 0.0 and y > 0.0 and z >= 0.0):
            return
        if self._count == 0:
            self._x, self._y, self._z = x, x + z if self._credit else y, z
        else:
            expected = max(self.at(x, z), 0.0)
            y = min(max(y, expected / CLIP), CLIP * expected) if expected else y
        self._count += 1
        weight = max(self._weight, 1.0 / (self._count + self._credit))
        if z:
            self._size += (weight if self._size else 1.0) * (z * z - self._size)
        dx, dy, dz = x - self._x, y - self._y, z - self._z
        self._x += weight * dx
        self._y += weight * dy
        self._z += weight * dz
        left = 1.0 - weight
        self._xx = left * (self._xx + weight * dx * dx)
        self._xy = left * (self._xy + weight * dx * dy)
        self._xz = left * (self._xz + weight * dx * dz)
        self._zy = left * (self._zy + weight * dz * dy)
        self._zz = left * (self._zz + weight * dz * dz)
