"""The tokens and chances of synthetic workers: every token, chance and coin is a hash of (file
seed, sequence, position, slot).

The target's token at a position is a hash of the sequence's key and that position, so the answer is
the same whatever is drafted, verified or preempted. A drafter proposes the target's token where its
keyed coin falls below the slot's true chance, and the next id where it does not: acceptance follows
the true chances exactly, and a verdict is a comparison.

The true chance of a slot is drawn anew for every (anchor position, slot) from a Beta distribution
whose mean is the domain's figure, so blocks differ and confidence is informative. Confidence is the
true chance, moved in logits by the file's bias and noise: with both 0 it is calibrated.

Symbols: n sequences, k slots.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspark.synthetic.spec import Domain, SyntheticSpec

Keys = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

QUANTILES = 2048  # equally likely values that stand for a Beta distribution: eleven bits
_GRID = 20_001
_MASK = (1 << 64) - 1
_A, _B = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_QUANTILE = np.uint64(QUANTILES - 1)
_S11, _S27, _S30, _S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)


class KeyPurpose(enum.IntEnum):
    """What a hash is used for; no hash serves two purposes."""

    SEQUENCE = 1
    TOKEN = 2
    SLOT = 3  # the true chance of a slot and, by other bits, its coin
    NOISE = 4
    RANK = 5
    JITTER = 6
    LENGTH = 7


def mix(value: Keys) -> Keys:
    """The finaliser of splitmix64, element by element of an array."""
    value = (value ^ (value >> _S30)) * _M1
    value = (value ^ (value >> _S27)) * _M2
    mixed: Keys = value ^ (value >> _S31)
    return mixed


def mix_one(value: int) -> int:
    """`mix` of one number."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def keyed(keys: Keys, purpose: KeyPurpose, a: Ints, b: Ints | None = None) -> Keys:
    """Hashes of (key, purpose, a, b), arrays that broadcast; distinct arguments take distinct steps
    of splitmix64."""
    step = keys + a.astype(np.uint64) * _A + np.uint64((int(purpose) << 48) & _MASK)
    return mix(step if b is None else step + b.astype(np.uint64) * _B)


def uniform(hashes: Keys) -> Floats:
    """Uniform numbers in [0, 1), of 53 bits, from hashes."""
    share: Floats = (hashes >> _S11).astype(np.float64) * 2.0**-53
    return share


def beta_quantiles(mean: float, concentration: float | None) -> Floats:
    """[QUANTILES] equally likely values of Beta(mean c, (1 - mean) c), shifted to have that mean
    exactly."""
    if concentration is None or not 0.0 < mean < 1.0:
        return np.full(QUANTILES, mean)
    a, b = mean * concentration, (1.0 - mean) * concentration
    # In logits the density has exponential tails, also where that of the Beta distribution itself
    # is unbounded.
    reach = 40.0 / min(a, b, 1.0)
    logit = np.linspace(-min(reach, 700.0), min(reach, 700.0), _GRID)
    log_weight = -a * np.logaddexp(0.0, -logit) - b * np.logaddexp(0.0, logit)
    weight = np.exp(log_weight - log_weight.max())
    mass = np.concatenate(([0.0], np.cumsum((weight[1:] + weight[:-1]) / 2)))
    at = np.interp((np.arange(QUANTILES) + 0.5) / QUANTILES, mass / mass[-1], logit)
    values: Floats = 1.0 / (1.0 + np.exp(-at))
    off = float(values.mean())
    return (
        values * (mean / off) if off > mean else 1.0 - (1.0 - values) * ((1.0 - mean) / (1.0 - off))
    )


class SyntheticOracle:
    """Tokens, chances and confidences of the pair that a file describes."""

    def __init__(self, spec: SyntheticSpec) -> None:
        self.spec = spec
        self.slots = spec.block
        # [domains, slots, QUANTILES]
        self._chances = np.stack([_quantiles(domain) for domain in spec.domains])
        self._seed = mix_one(spec.seed ^ 0x5DEECE66D)
        self._after = np.arange(self.slots)
        self._vocabulary = np.uint64(spec.vocabulary)

    def domain(self, first_token: int) -> int:
        """Index of a prompt's domain: its first id modulo the number of domains."""
        return first_token % len(self.spec.domains)

    def key(self, first_token: int, seed: int, choice: int) -> int:
        """The key of a sequence, from which all its hashes are made."""
        key = mix_one(
            (self._seed + int(KeyPurpose.SEQUENCE) + first_token * 0x9E3779B97F4A7C15) & _MASK
        )
        return mix_one((mix_one((key + seed) & _MASK) + choice) & _MASK)

    def target(self, keys: Keys, positions: Ints) -> Ints:
        """The target's token at each position."""
        ids: Ints = (keyed(keys, KeyPurpose.TOKEN, positions) % self._vocabulary).astype(np.int64)
        return ids

    def judge(
        self, keys: Keys, lengths: Ints, prefixes: Sequence[Sequence[int]]
    ) -> list[tuple[int, ...]]:
        """For each prefix the drafted tokens kept, and the target's token behind them. lengths:
        committed tokens before each."""
        widest = 1 + max(map(len, prefixes))
        said = self.target(keys[:, None], lengths[:, None] + np.arange(widest)).tolist()
        drawn = []
        for prefix, truth in zip(prefixes, said, strict=True):
            kept = next(
                (slot for slot, token in enumerate(prefix) if token != truth[slot]), len(prefix)
            )
            drawn.append(tuple(truth[: kept + 1]))
        return drawn

    def draft(self, keys: Keys, domains: Ints, anchors: Ints) -> tuple[Ints, Floats]:
        """[n, k] drafted ids after these anchor positions, and the true chance of each slot if
        those before are kept.

        An id is the target's where the slot's coin falls below its chance.
        """
        hashes = keyed(keys[:, None], KeyPurpose.SLOT, anchors[:, None], self._after)
        drawn = (hashes & _QUANTILE).astype(np.int64)  # the coin takes the upper 53 bits of 64
        chances: Floats = self._chances[domains[:, None], self._after, drawn]
        ids = self.target(keys[:, None], anchors[:, None] + (1 + self._after))
        said: Ints = (ids + (uniform(hashes) >= chances)) % self.spec.vocabulary
        return said, chances

    def confidences(self, keys: Keys, anchors: Ints, chances: Floats) -> Floats:
        """[n, k] the drafter's confidence in its slots; the chances themselves without noise and
        bias."""
        if not self.spec.noise and not self.spec.bias:
            return chances
        hashes = keyed(keys[:, None], KeyPurpose.NOISE, anchors[:, None], self._after)
        # Two uniforms of one hash give a normal value (Box and Muller).
        radius = np.sqrt(-2.0 * np.log1p(-uniform(hashes)))
        error = self.spec.bias + self.spec.noise * radius * np.cos(
            2.0 * np.pi * uniform(mix(hashes))
        )
        inside = np.clip(chances, 1e-9, 1.0 - 1e-9)
        believed: Floats = 1.0 / (1.0 + np.exp(-(np.log(inside) - np.log1p(-inside) + error)))
        return believed


def _quantiles(domain: Domain) -> Floats:
    return np.stack([beta_quantiles(mean, domain.concentration) for mean in domain.accept])
