"""Statistics of the ratio rules that show whether drafted tokens come from the q that is sent.

The ratio rules are exact for tokens that were drawn from their q. The verifier knows q and p, so it
computes three values of verified slots and blocks whose averages are known if, and about only if,
the drafts are honest and do not depend on the coins:

* *place*: the randomised probability integral transform of the token under its q, u = Q(before x) +
  U q(x), is uniform on [0, 1). U comes from a secret of this process, so no drafter can know it.
  Tokens are ranked by their q, then by id, so the order of q's entries does not matter.
* *drift*: alive_k, the chance that the first k tokens are kept given those k tokens, minus its
  average over q at slot k. That average and its variance are sums over q's support.
* *luck*: tokens kept, minus their mean given the whole block: the rule's own coins.

Every verified slot counts, also behind a rejected one: whether slot k is verified depends on
earlier tokens only (invariant 2, no peeking). At temperature 0 and under the coupled rule there is
nothing to check: q is not sent or has one entry, and no drafter can change the distribution.

Symbols: S slots of all sequences, N entries of their sparse q, m sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dspark.decoding.slots import Floats, Ints, PackedCase, Slots
from dspark.types import PLACES, Draws

Labels = npt.NDArray[np.float32]  # [slots, 2] of one sequence


class _RuleCall(NamedTuple):
    """What one call of a rule recorded."""

    sequences: list[int]  # [m]
    lengths: list[int]  # [m] slots of each
    # [S] whether its q can produce the slot's token, and so for those before it
    counts: npt.NDArray[np.bool_]
    place: Ints  # [S] which of `PLACES` equal parts of [0, 1) holds u
    alive: Floats  # [S]
    expected: Floats  # [S] average of alive over q at that slot
    variance: Floats  # [S] variance of alive over q at that slot
    luck: Floats  # [m] in units of the slots that count, so within [-1, 1]
    luck_variance: Floats  # [m]


class DrawsWatch:
    """Collects these statistics over the rule calls of a pass; `secret` keys its own noise
    alone."""

    def __init__(self, secret: int) -> None:
        self._noise = np.random.Generator(np.random.Philox(secret))
        self._seen: list[_RuleCall] = []

    def clear(self) -> None:
        """Forgets what was recorded, of a pass that failed after its rule: it may run again."""
        self._seen = []

    def note(
        self,
        cases: Sequence[PackedCase],
        slots: Slots,
        if_drawn: Floats,  # [N] alive of an entry's slot if the entry were its token
        alive: Floats,  # [S]
        chance: Floats,  # [S] that the slot is kept, given the whole block
        kept: Sequence[int],  # [m]
    ) -> None:
        """Records one call of a rule; raises nothing, as the verdicts are decided already."""
        size = len(slots.drafted)
        if not size:
            return
        own, q, slot = slots.q, slots.probs, slots.slot
        before = (q > own[slot]) | ((q == own[slot]) & (slots.ids < slots.drafted[slot]))
        below = np.bincount(slot, np.where(before, q, 0.0), minlength=size)
        u = below + self._noise.random(size) * own
        weighted = q * if_drawn
        expected: Floats = np.bincount(slot, weighted, minlength=size).astype(np.float64)
        variance = np.maximum(
            np.bincount(slot, weighted * if_drawn, minlength=size) - expected**2, 0.0
        )
        lengths, counting = np.array((slots.lengths, slots.counting), np.int64)
        counts = slots.within <= np.repeat(counting, lengths)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        mine = np.where(counts, chance, 0.0)
        mean = np.bincount(sequence, mine, minlength=len(lengths))
        square = np.bincount(sequence, (2.0 * slots.within - 1.0) * mine, minlength=len(lengths))
        unit = np.maximum(counting, 1.0)
        self._seen.append(
            _RuleCall(
                [case.cursor.sequence for case in cases],
                slots.lengths,
                counts,
                np.minimum(u * PLACES, PLACES - 1).astype(np.int64),
                alive,
                expected,
                variance,
                (np.array(kept, np.float64) - mean) / unit,
                np.maximum(square - mean**2, 0.0) / unit**2,
            )
        )

    def labels(self) -> dict[int, Labels]:
        """By sequence, [slots, 2]: the chance that a slot is reached, and that its token is kept
        too, given the tokens before.

        Exact chances where an outcome is one random bit: calibration learns from these. NaN for
        slots that do not count.
        """
        told: dict[int, Labels] = {}
        for seen in self._seen:
            ends = np.cumsum(seen.lengths)
            reached = np.roll(seen.alive, 1)
            reached[ends[:-1][ends[:-1] < len(reached)]] = 1.0
            reached[0] = 1.0
            both = np.stack((reached, seen.expected), axis=1)
            both[~seen.counts] = np.nan
            parts = np.split(both.astype(np.float32), ends[:-1])
            told |= {
                sequence: part
                for sequence, part in zip(seen.sequences, parts, strict=True)
                if len(part)
            }
        return told

    def sums(self, versions: Mapping[int, str]) -> list[Draws]:
        """Sums by drafter version, which `versions` gives for every sequence; clears the
        records."""
        made: dict[str, Draws] = {}
        for seen in self._seen:
            names = [versions.get(sequence, "") for sequence in seen.sequences]
            for name in dict.fromkeys(names):
                row = np.array([each == name for each in names])
                slot = np.repeat(row, seen.lengths) & seen.counts
                blocks = row & (np.array(seen.lengths) > 0)
                if name and slot.any():
                    made[name] = made.get(name, Draws(name)) + Draws(
                        name,
                        slots=int(slot.sum()),
                        places=tuple(np.bincount(seen.place[slot], minlength=PLACES).tolist()),
                        drift=float((seen.alive - seen.expected)[slot].sum()),
                        variance=float(seen.variance[slot].sum()),
                        blocks=int(blocks.sum()),
                        luck=float(seen.luck[blocks].sum()),
                        luck_variance=float(seen.luck_variance[blocks].sum()),
                    )
        self.clear()
        return list(made.values())
