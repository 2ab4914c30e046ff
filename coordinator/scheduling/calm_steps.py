"""How long a step of a calm stretch takes, beside the same step among drafted ones. Pure numbers.

A verifier that waits for drafts finds its caches cold: on a CPU a step takes up to twice what it takes where one plain
round follows another. Which kind a lane sees depends on what it chooses, so the one is rare where the other is common,
and meanwhile the machine's speed moves. Two logarithms therefore are followed together, over the measured curve: the
speed (what drafted steps take) and what calm ones take less, by a Kalman filter of two states. A step moves what it
tells something about, as far as that is uncertain: a long plain stretch moves the sum and leaves the difference alone,
the few drafted steps of a probe behind it move the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

NOISE = 0.04  # variance of one step's logarithm
SPEED_MOVES, CALM_MOVES = 1e-4, 4e-6  # variance that a step adds to either state
SPEED_AT_FIRST, CURVE = 0.25, 0.01  # variances: of the speed at first; of calm steps about the curve, measured so
MOST_OFF = 1.0  # of one step, which may have stalled
USUAL_DOUBT = 0.1  # standard deviation of what calm steps take that is no reason to look
BOUNDS = (0.4, 1.1)


@dataclass(slots=True)
class CalmSteps:
    """The two states with their covariance. The curve is measured in a calm stretch, so that at first the speed is
    unknown and calm steps take what it says."""

    speed: float = 0.0
    less: float = 0.0
    _of_speed: float = SPEED_AT_FIRST
    _of_both: float = -SPEED_AT_FIRST
    _of_less: float = SPEED_AT_FIRST + CURVE

    @property
    def factor(self) -> float:
        """A calm step's seconds, over those of the same step among drafted ones."""
        return _bounded(self.less)

    @property
    def hoped(self) -> float:
        """The same as it may well be: what has not been seen for long is given the benefit of the doubt, or a lane
        that drafts would never learn what it could have without."""
        doubt = math.sqrt(max(self._of_speed + 2.0 * self._of_both + self._of_less, 0.0))
        return _bounded(self.less - max(doubt - USUAL_DOUBT, 0.0))

    def observe(self, ratio: float, calm: bool) -> None:
        """What a step took, over what the measured curve says."""
        if not (math.isfinite(ratio) and ratio > 0.0):
            return
        self._of_speed += SPEED_MOVES
        self._of_less += CALM_MOVES
        expected = self.speed + (self.less if calm else 0.0)
        with_speed = self._of_speed + (self._of_both if calm else 0.0)
        with_less = self._of_both + (self._of_less if calm else 0.0)
        variance = with_speed + (with_less if calm else 0.0) + NOISE
        off = min(max(math.log(ratio) - expected, -MOST_OFF), MOST_OFF)
        self.speed += with_speed / variance * off
        self.less += with_less / variance * off
        self._of_speed -= with_speed * with_speed / variance
        self._of_both -= with_speed * with_less / variance
        self._of_less -= with_less * with_less / variance


def _bounded(logarithm: float) -> float:
    return min(max(math.exp(logarithm), BOUNDS[0]), BOUNDS[1])
