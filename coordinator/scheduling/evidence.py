"""What past rounds say about drafting for each sequence: how much its slots brought and how often they were verified.

Kept as arrays, one row per sequence, so that a cohort is read and updated without a loop over it. Gains are taken from
calibrated survival rather than from coin tosses, which have the same mean and far more noise, and are scaled by
`trust`: what was accepted over what survival promised, so that a drafter whose confidence is wrong is found out.
Invariant 2, no peeking: only finished rounds come in.

Shapes: n sequences of a cohort, k slots of a block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dspark.rounds.schedule import Floats, Ints

WEIGHT = 0.04  # of one round in a sequence's means, once it has had a few
FORGETTING = 1.5  # a sequence's first rounds weigh 1 / (rounds + this): soon they outweigh what others were like
UNSEEN_WEIGHT = 0.02  # with which slots that were not drafted follow the slot before them
TRUST_WEIGHT = 0.03
TRUST_STIFFNESS = 4.0  # accepted tokens a round that the lane's trust counts for in a sequence's own
TRUST_BOUNDS = (0.001, 1.5)
PRIOR_WEIGHT = 0.1  # of one finished sequence in what is expected of the next
HOPEFUL = 0.8  # acceptance per slot that is expected of the first sequences of all


class Evidence:
    """Rows are taken by `take` and given back by `free`."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self._free: list[int] = []
        self._size = 0
        self.gain: Floats = np.zeros((16, slots))  # mean survival of a slot, 0 in rounds that had no use for it
        self.used: Floats = np.zeros((16, slots))  # share of rounds that verified a slot or should have
        self.judged: Ints = np.zeros(16, np.int64)  # rounds with a draft
        self._promised: Floats = np.zeros(16)
        self._accepted: Floats = np.zeros(16)
        self.rounds = 0  # drafted rounds, of all sequences
        self._prior_gain: Floats = HOPEFUL ** np.arange(1.0, slots + 1.0)
        self._prior_used: Floats = np.ones(slots)
        self._lane_promised = self._lane_accepted = 0.0

    def widen(self, slots: int) -> None:
        """Makes room for longer blocks; of the new slots nothing is known."""
        more = slots - self.slots
        if more <= 0:
            return
        self.gain, self.used = (np.pad(grid, ((0, 0), (0, more)), mode="edge") for grid in (self.gain, self.used))
        hopeful = self._prior_gain[-1] * HOPEFUL ** np.arange(1.0, more + 1.0)
        self._prior_gain = np.concatenate((self._prior_gain, hopeful))
        self._prior_used = np.pad(self._prior_used, (0, more), mode="edge")
        self.slots = slots

    def take(self) -> int:
        """A row for a sequence that begins: what earlier ones were like is expected of it."""
        if not self._free:
            if self._size == len(self.judged):
                self._grow()
            self._free.append(self._size)
            self._size += 1
        row = self._free.pop()
        self.gain[row], self.used[row] = self._prior_gain, self._prior_used
        self.judged[row], self._promised[row], self._accepted[row] = 0, 0.0, 0.0
        return row

    def free(self, row: int, *, ended: bool = True) -> None:
        """The sequence left. Every one that ended counts the same in what is expected of the next; one that was
        preempted or lost its verifier comes back, and would count again for each time it left."""
        if ended and self.judged[row] > 2:
            self._prior_gain += PRIOR_WEIGHT * (self.gain[row] - self._prior_gain)
            self._prior_used += PRIOR_WEIGHT * (self.used[row] - self._prior_used)
        self._free.append(row)

    def trust(self, rows: Ints) -> Floats:
        """[n] what a promised token is worth."""
        lane = (self._lane_accepted + 0.1) / (self._lane_promised + 0.1)
        own = (self._accepted[rows] + TRUST_STIFFNESS * lane) / (self._promised[rows] + TRUST_STIFFNESS)
        clipped: Floats = np.clip(own, *TRUST_BOUNDS)
        return clipped

    def observe(
        self,
        rows: Ints,  # [n]
        alive: Floats,  # [n, k] survival
        lengths: Ints,  # [n] slots drafted, above 0
        prefixes: Ints,  # [n] slots verified
        accepted: Ints,  # [n]
        *,
        price: float = 1.0,  # survival from which on a slot was worth its place, whether it got one or not
        least_weight: float = WEIGHT,
    ) -> None:
        """A judged round of sequences that had drafts."""
        count, width = alive.shape
        if not count:
            return
        slots = np.arange(width)
        drafted, verified = slots < lengths[:, None], slots < prefixes[:, None]
        worthy = verified | (drafted & (alive >= price))
        brought = np.where(worthy, alive, 0.0)
        weight = np.maximum(least_weight, 1.0 / (self.judged[rows] + FORGETTING))[:, None]
        weight = np.where(drafted, weight, 0.0)
        gain, used = self.gain[rows], self.used[rows]
        gain[:, :width] += weight * (brought - gain[:, :width])
        used[:, :width] += weight * (worthy - used[:, :width])
        self._follow(gain, used, lengths)
        self.gain[rows], self.used[rows] = gain, used
        promised = np.where(verified, alive, 0.0).sum(axis=1)
        self._promised[rows] += TRUST_WEIGHT * (promised - self._promised[rows])
        self._accepted[rows] += TRUST_WEIGHT * (accepted - self._accepted[rows])
        lane = min(1.0, max(TRUST_WEIGHT, 1.0 / (self.rounds + 1.0)))
        self._lane_promised += lane * (float(promised.mean()) - self._lane_promised)
        self._lane_accepted += lane * (float(accepted.mean()) - self._lane_accepted)
        self.judged[rows] += 1
        self.rounds += count

    def _follow(self, gain: Floats, used: Floats, lengths: Ints) -> None:
        """Slots past the drafted ones drift towards what the slot before them and earlier sequences suggest."""
        short = lengths < self.slots
        if not short.any():
            return
        for slot in range(max(int(lengths[short].min()), 1), self.slots):
            unseen = short & (lengths <= slot)
            for grid, prior in ((gain, self._prior_gain), (used, self._prior_used)):
                ratio = min(prior[slot] / max(prior[slot - 1], 1e-6), 1.0)
                grid[unseen, slot] += UNSEEN_WEIGHT * (ratio * grid[unseen, slot - 1] - grid[unseen, slot])

    def _grow(self) -> None:
        more = len(self.judged)
        self.gain, self.used = (np.pad(grid, ((0, more), (0, 0))) for grid in (self.gain, self.used))
        self.judged = np.pad(self.judged, (0, more))
        self._promised, self._accepted = np.pad(self._promised, (0, more)), np.pad(self._accepted, (0, more))


_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def keyed(sequence: npt.NDArray[np.uint64], rounds: npt.NDArray[np.uint64]) -> Floats:
    """[n] numbers in [0, 1), a function of (sequence, round) alone: splitmix64 of both."""
    with np.errstate(over="ignore"):
        mixed = sequence * _MIX[0] + rounds * _MIX[1] + _MIX[2]
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[1]
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[2]
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
