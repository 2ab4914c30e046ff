"""Accepted length and its interval from counts by prompt and seed.

tau = emitted tokens / rounds, pooled over the prompts of a domain; over domains and seeds the plain mean. Intervals
resample prompts (within a domain, the same ones for all seeds) and seeds, both with replacement, and take the middle
95 %. Two families are compared on the same resamples, so what they share cancels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = Mapping[str, npt.NDArray[np.int64]]  # domain -> [prompts, 2], rounds and emitted tokens
Floats = npt.NDArray[np.float64]
RESAMPLES = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    middle: float
    low: float
    high: float

    def apart_from(self, other: "Interval") -> bool:
        return self.low > other.high or other.low > self.high


def tau(counts: npt.NDArray[np.int64]) -> float:
    """Of [prompts, 2]."""
    rounds, emitted = counts.sum(axis=0)
    return float(emitted / max(1, rounds))


def resampled(seeds: Sequence[Counts], *, resamples: int = RESAMPLES) -> dict[str, Floats]:
    """Domain, and "mean" of the domains -> tau of every resample [resamples]. Equal for equal shapes of input."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(seeds), size=(resamples, len(seeds)))
    taus: dict[str, Floats] = {}
    for domain in seeds[0]:
        stacked = np.stack([counts[domain] for counts in seeds])  # [S, P, 2]
        prompts = stacked.shape[1]
        weights = rng.multinomial(prompts, np.full(prompts, 1 / prompts), size=resamples)  # [R, P]
        sums = np.einsum("rp,spc->rsc", weights, stacked)  # [R, S, 2]
        each = sums[..., 1] / np.maximum(1, sums[..., 0])
        taus[domain] = np.take_along_axis(each, chosen, axis=1).mean(axis=1)
    taus["mean"] = np.mean(list(taus.values()), axis=0)
    return taus


def measured(seeds: Sequence[Counts]) -> dict[str, float]:
    """Domain, and "mean" -> tau, the plain mean over seeds."""
    taus = {domain: float(np.mean([tau(counts[domain]) for counts in seeds])) for domain in seeds[0]}
    return taus | {"mean": float(np.mean(list(taus.values())))}


def interval(middle: float, draws: Floats) -> Interval:
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(middle, float(low), float(high))


def intervals(seeds: Sequence[Counts]) -> dict[str, Interval]:
    draws = resampled(seeds)
    return {domain: interval(middle, draws[domain]) for domain, middle in measured(seeds).items()}


def differences(ours: Sequence[Counts], theirs: Sequence[Counts]) -> dict[str, Interval]:
    """tau of `ours` less tau of `theirs`, on the same resamples."""
    first, second, a, b = measured(ours), measured(theirs), resampled(ours), resampled(theirs)
    return {domain: interval(first[domain] - second[domain], a[domain] - b[domain]) for domain in first}


def conditional(survived: Sequence[int], rounds: int, fewest: int = 1) -> list[float]:
    """Chance of slot k given that the slots before it were accepted, from how many rounds got past each slot.

    Not a number where fewer than `fewest` rounds reached the slot.
    """
    before = [rounds, *survived[:-1]]
    return [count / past if past >= fewest else float("nan") for count, past in zip(survived, before, strict=True)]
