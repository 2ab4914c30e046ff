"""How reliable confidence is: tokens accepted over tokens promised, by drafter, bucket and slot.

Invariant 2, no peeking: only finished rounds are used. Most slots are never verified, and those
that are were promising. The comparison is conditional, so this selection does no harm: a slot
counts iff it was verified and the slots before it were accepted (or with the chance of that, where
the verifier reports chances), and it promises its own confidence. Whether it is verified follows
from confidences up to its own, on which the comparison is conditioned; so if confidence is
calibrated, accepted and promised have the same mean whatever is verified.

Symbols: n sequences, k slots of the longest block, b slots of a whole block.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from dspark.rounds.survival import Floats, Ints

MEMORY = 1024.0  # blocks after which an observation of a key weighs a third
STIFFNESS = 16.0  # promised tokens that the wider record counts for, see `ratios`
BOUNDS = (0.001, 1.5)
KEYS = 256  # drafters times buckets that are tracked; beyond, the one seen longest ago is forgotten
HOPEFUL = 0.8  # confidence of a slot that is assumed before any was seen


class AcceptanceEstimator:
    """Running sums of promised and accepted tokens of one lane."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        # [2, b]: promised, accepted; the key observed longest ago is first
        self._sums: dict[Hashable, Floats] = {}
        self._everybody = np.zeros((2, slots))
        # sums of confidences of drafted slots, and their number
        self._confidence = np.zeros((2, slots))

    def observe(
        self,
        keys: Sequence[Hashable],  # [n] drafter and bucket
        confidence: Floats,  # [n, k] as the drafter gave it, NaN beyond each block
        verified: Ints,  # [n] slots
        accepted: Ints,  # [n] slots
        # [n, k, 2] chances to reach a slot, and to keep it too; NaN where unknown
        labels: Floats | None = None,
    ) -> None:
        """Adds one finished round."""
        width = min(confidence.shape[1], self.slots)
        sure = confidence[:, :width]
        slots = np.arange(width)
        drafted = ~np.isnan(sure)
        own = np.clip(np.nan_to_num(sure), 0.0, 1.0)
        reached: Floats = (slots <= accepted[:, None]).astype(np.float64)
        kept: Floats = (slots < accepted[:, None]).astype(np.float64)
        if labels is not None:
            known = ~np.isnan(labels[:, :width, 0])
            reached = np.where(known, labels[:, :width, 0], reached)
            kept = np.where(known, labels[:, :width, 1], kept)
        counts = drafted & (slots < verified[:, None])
        promised, made = np.where(counts, reached * own, 0.0), np.where(counts, kept, 0.0)
        for key in dict.fromkeys(keys):
            rows = np.fromiter((each == key for each in keys), np.bool_, len(keys))
            sums = self._sums.pop(key, None)
            if sums is None:
                if len(self._sums) >= KEYS:
                    del self._sums[next(iter(self._sums))]
                sums = np.zeros((2, self.slots))
            self._sums[key] = sums
            _add(sums, promised[rows], made[rows])
        _add(self._everybody, promised, made)
        _add(self._confidence, np.where(drafted, own, 0.0), drafted.astype(np.float64))

    def ratios(self, key: Hashable) -> Floats:
        """[b] factors for a slot's confidence: the slot's own record, shrunk to its key's, which is
        shrunk to the lane's, which is shrunk to agreement."""
        sums, whole = self._sums.get(key), self.trust(key)
        if sums is None:
            return np.full(self.slots, whole)
        found: Floats = np.clip((sums[1] + STIFFNESS * whole) / (sums[0] + STIFFNESS), *BOUNDS)
        return found

    def trust(self, key: Hashable) -> float:
        """One such factor for all slots together: the worth of a promised token under this key."""
        lane = self._shrunk(self._everybody.sum(axis=1), 1.0)
        sums = self._sums.get(key)
        return lane if sums is None else self._shrunk(sums.sum(axis=1), lane)

    def usual(self) -> Floats:
        """[b] mean confidence of a slot, for slots that a block does not have."""
        total, count = self._confidence
        found: Floats = (total + HOPEFUL) / (count + 1.0)
        return found

    def _shrunk(self, sums: Floats, towards: float) -> float:
        ratio = (float(sums[1]) + STIFFNESS * towards) / (float(sums[0]) + STIFFNESS)
        return min(max(ratio, BOUNDS[0]), BOUNDS[1])


def _add(sums: Floats, first: Floats, second: Floats) -> None:
    """Fades the running sums, then adds the rows of both."""
    sums *= np.exp(-len(first) / MEMORY)
    sums[0, : first.shape[1]] += first.sum(axis=0)
    sums[1, : first.shape[1]] += second.sum(axis=0)
