"""Sequential tests of whether draws follow their q, valid at every look: wealth of bets against
honest drafts.

While tokens are drawn from their q, every draw multiplies a bet's wealth by a factor of mean at
most 1, whatever was bet on before. By Ville's inequality wealth then ever reaches 1/a with a chance
of at most a, however often it is tested. The mean of several wealths has the same property, so many
bets are placed at once: against any deviation from q some of them grow by a constant factor a draw.
All are functions of sums (`Draws`), so sums of cohorts, lanes and verifiers can be added. Ville
1939; for bounded differences of known variance Freedman 1975; mixtures: Robbins 1970.

Bets: on how many tokens fall into each dyadic part of [0, 1) by their place under q (Bernoulli,
exact), on the drift of the chance to be kept, and on the luck of the rule's coins (differences
within [-1, 1], variances known).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.types import PLACES, Draws

Floats = npt.NDArray[np.float64]

LEVELS = PLACES.bit_length() - 1  # parts of 1/2, 1/4 .. 1/PLACES
_HALF: Floats = 0.01 * np.exp2(np.arange(9.0))
# exponents of the bets: small ones find small deviations, late
STAKES: Floats = np.concatenate((_HALF, -_HALF))
_COST: Floats = np.expm1(np.abs(STAKES)) - np.abs(STAKES)
# [levels, stakes]
_SHARE: Floats = np.log1p(np.exp2(-np.arange(1.0, LEVELS + 1.0))[:, None] * np.expm1(STAKES))

STATISTICS = ("places", "drift", "luck")


def log_wealth(draws: Draws) -> tuple[float, str]:
    """Logarithm of the mean wealth of all bets, and the statistic that brought most of it."""
    each = [
        of_places(draws),
        of_sum(draws.drift, draws.variance),
        of_sum(draws.luck, draws.luck_variance),
    ]
    best = max(range(len(each)), key=each.__getitem__)
    return float(np.logaddexp.reduce(each)) - float(np.log(len(each))), STATISTICS[best]


def of_places(draws: Draws) -> float:
    """Log of the mean wealth of the bets on where tokens fall under their q."""
    counts = np.array(draws.places, np.float64)
    logs = []
    for level in range(1, LEVELS + 1):
        inside = counts.reshape(1 << level, -1).sum(axis=1)
        wealth = inside[:, None] * STAKES - draws.slots * _SHARE[level - 1]  # [parts, stakes]
        logs.append(np.logaddexp.reduce(wealth.ravel()) - np.log(wealth.size))
    return float(np.logaddexp.reduce(logs) - np.log(LEVELS))


def of_sum(total: float, variance: float) -> float:
    """Log of the mean wealth of the bets on a sum of differences within [-1, 1] whose conditional
    variances sum to `variance`."""
    wealth = STAKES * total - _COST * variance
    return float(np.logaddexp.reduce(wealth) - np.log(len(STAKES)))
