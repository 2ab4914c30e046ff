"""Chi-square of single tokens, of pairs and of whole answers, and Holm's correction over all of
them."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
LEAST_EXPECTED = 8.0  # rarer cells are counted as one


def p_values(law: Floats, counts: Ints, *, vocabulary: int, length: int) -> dict[str, float]:
    """By what is looked at: law and counts are [V ** length]."""
    shape = (vocabulary,) * length
    found = {"answers": p_value(law, counts)}
    for size, name in ((1, "token"), (2, "pair")):
        for places in combinations(range(length), size):
            others = tuple(place for place in range(length) if place not in places)
            told = f"{name} {'-'.join(str(place + 1) for place in places)}"
            expected, seen = law.reshape(shape).sum(others), counts.reshape(shape).sum(others)
            found[told] = p_value(expected.ravel(), seen.ravel())
    return found


def p_value(law: Floats, counts: Ints) -> float:
    """Pearson's test. What cannot be and was seen all the same has p = 0."""
    from scipy.stats import chi2

    expected = law * counts.sum()
    if counts[law <= 0].any():
        return 0.0
    common = expected >= LEAST_EXPECTED
    groups = list(zip(expected[common], counts[common], strict=True))
    if (rest := float(expected[~common].sum())) > 0:
        groups.append((rest, counts[~common].sum()))
    if len(groups) < 2:
        return 1.0
    statistic = sum((seen - wanted) ** 2 / wanted for wanted, seen in groups)
    return float(chi2.sf(statistic, len(groups) - 1))


def holm(values: Sequence[float]) -> list[float]:
    """Each p-value corrected for all of them (Holm, 1979), in the order given."""
    corrected, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, values[place] * (len(values) - rank)))
        corrected[place] = highest
    return corrected
