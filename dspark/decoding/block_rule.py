"""Block verification (Sun et al., ICLR 2025, arXiv 2403.10444): one decision about a block instead
of one per token.

P_0 = 1 and P_i = min(1, P_{i-1} p_i(x_i) / q_i(x_i)) is the chance that the first i tokens are
kept. With S_i = sum over v of max(P_i p_{i+1}(v) - q_{i+1}(v), 0) the first i tokens are a
candidate with chance h_i = S_i / (S_i + 1 - P_i), for the last slot sent h_l = P_l; 0 / 0 reads as
1. Independent coins decide, and the *longest* candidate is kept. After a whole block the target
adds a token from p, else from norm(max(P_i p_{i+1} - q_{i+1}, 0)).

The expected length is never below the token rule's, and exactness survives lengths chosen by a
scheduler that does not peek: Pr[kept >= i | x_1 .. x_i] = P_i whatever happens in later slots. Only
q's support is sent: S_i = P_i - sum over v in supp q of min(P_i p(v), q(v)).

Symbols: S slots of all sequences, N entries of their sparse q, m sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dspark.decoding.draws import DrawsWatch
from dspark.decoding.slots import Floats, PackedCase, Slots


class CoinThresholds(NamedTuple):
    """The probabilities that the coins of all slots are compared with."""

    alive: Floats  # [S] P_i of slot i
    candidate: Floats  # [S] h_i of slot i; 0 past the slots that count


def chances(p: Floats, slots: Slots) -> CoinThresholds:
    """P_i and h_i of every slot, from p [N], the target's probability of every entry of q."""
    size = len(slots.drafted)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # slots whose q is 0 do not count
        ratio = (slots.of_drafted(p) / slots.q).tolist()
    before, after, last = np.ones(size), np.zeros(size), np.zeros(size, np.bool_)
    for start, counting in zip(slots.starts, slots.counting, strict=True):
        alive = 1.0
        for slot in range(start, start + counting):
            before[slot] = alive
            alive = min(1.0, alive * ratio[slot]) if alive > 0.0 else 0.0
            after[slot] = alive
        if counting:
            last[start + counting - 1] = True
    shared = np.bincount(
        slots.slot, np.minimum(before[slots.slot] * p, slots.probs), minlength=size
    )
    left = np.maximum(before - shared, 0.0)  # S of the slot before
    candidate = after.copy()
    inner = np.flatnonzero((after > 0.0) & ~last)
    rest, lost = left[inner + 1], 1.0 - after[inner]
    candidate[inner] = np.divide(
        rest, rest + lost, out=np.ones(len(inner)), where=rest + lost > 0.0
    )
    return CoinThresholds(after, candidate)


def longest(p: Floats, slots: Slots, accept_u: Floats) -> tuple[list[int], Floats]:
    """The block rule, a `ratio.Decide`; the weight is P of the tokens kept."""
    made = chances(p, slots)
    heads = (accept_u < made.candidate).tolist()
    kept: list[int] = []
    alive = np.ones(len(slots.lengths))
    for sequence, (start, counting) in enumerate(zip(slots.starts, slots.counting, strict=True)):
        count = next((k for k in range(counting, 0, -1) if heads[start + k - 1]), 0)
        kept.append(count)
        if 0 < count < counting:
            alive[sequence] = made.alive[start + count - 1]
    return kept, alive


def note_blocks(
    watch: DrawsWatch, cases: Sequence[PackedCase], slots: Slots, p: Floats, kept: Sequence[int]
) -> None:
    """Records a call of the block rule, a `ratio.Note`."""
    made = chances(p, slots)
    chance = some_head(made, slots)
    watch.note(cases, slots, if_drawn(p, made.alive, slots), made.alive, chance, kept)


def if_drawn(p: Floats, alive: Floats, slots: Slots) -> Floats:
    """P_i of each entry's slot if the entry were its token: p [N], alive [S] -> [N]."""
    before = np.where(slots.within == 1, 1.0, np.roll(alive, 1))[slots.slot]
    capped = np.ones(len(p))
    np.divide(before * p, slots.probs, out=capped, where=slots.probs > before * p)
    return capped


def some_head(made: CoinThresholds, slots: Slots) -> Floats:
    """Chance that this slot or a later one is the longest candidate, given the whole block: [S]."""
    heads, tails = made.candidate.tolist(), np.zeros(len(made.candidate))
    for start, length in zip(slots.starts, slots.lengths, strict=True):
        nobody = 1.0
        for slot in range(start + length - 1, start - 1, -1):
            nobody *= 1.0 - heads[slot]
            tails[slot] = 1.0 - nobody
    return tails
