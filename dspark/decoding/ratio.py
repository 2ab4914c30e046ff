"""What the two ratio rules share: judging a packed pass, target probabilities, keyed coins, the
residual.

Both weigh the target's probability p of a drafted token against q, the probability it was drawn
with. They are exact for any q, provided it is the q that the token was drawn from (invariant 3),
that sending the slot did not depend on the token (invariant 2), and that no draw is used twice
(invariant 4). Everything is float64.

Symbols: S slots of all sequences, N entries of their sparse q, m sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.draws import DrawsWatch
from dspark.decoding.philox import Purpose, key_of, uniforms
from dspark.decoding.sampling import draw
from dspark.decoding.slots import Floats, Ints, PackedCase, Slots, Spot, target_probs

FEW = 4  # sequences judged at a time: what they take stays in a CPU's caches
PIECE = 1 << 16  # probabilities that are worked on at a time

# From p [N], the target's probability of every entry of q, and coins [S]: tokens kept of each
# sequence, and the weight [m] of p at the rejected slot behind them (None for 1).
Decide = Callable[[Floats, Slots, Floats], tuple[list[int], Floats | None]]
# Records a call for the watch, with p [N] and the tokens kept.
Note = Callable[[DrawsWatch, Sequence[PackedCase], Slots, Floats, Sequence[int]], None]


def judge_ratio(
    logits: Tensor,
    cases: Sequence[PackedCase],
    *,
    decide: Decide,
    note: Note,
    watch: DrawsWatch | None = None,
) -> list[tuple[int, int]]:
    """(accepted, next token) of sampled sequences by one of the rules: logits [T, V] on the
    host."""
    verdicts: list[tuple[int, int]] = []
    for part in (cases[first : first + FEW] for first in range(0, len(cases), FEW)):
        slots = slots_of(part)
        spots = [(case, slot) for case in part for slot in range(len(case.draft_ids))]
        p = probabilities(logits, spots, slots.slot, slots.ids)
        kept, alive = decide(p, slots, coins(Purpose.ACCEPT, part, slots.lengths, slots.within))
        if watch is not None:
            note(watch, part, slots, p, kept)
        last = target_probs(logits, list(zip(part, kept, strict=True)))
        if alive is not None:
            last = scaled(last, alive)
        rejected = [
            start + count if count < counting else None
            for start, counting, count in zip(slots.starts, slots.counting, kept, strict=True)
        ]
        probs = residual(last, slots.dense(rejected, last))
        u = coins(Purpose.EMIT, part, [1] * len(part), np.array(kept) + 1)
        verdicts += zip(kept, draw(probs, torch.from_numpy(u)).tolist(), strict=True)
    return verdicts


def slots_of(cases: Sequence[PackedCase]) -> Slots:
    """The drafted slots of all sequences."""
    return Slots.of(
        [case.draft_ids for case in cases],
        [np.frombuffer(case.q.ids, "<u4") for case in cases],
        [np.frombuffer(case.q.probs, "<f4") for case in cases],
        [case.q.entries for case in cases],
    )


def probabilities(logits: Tensor, spots: Sequence[Spot], slot: Ints, ids: Ints) -> Floats:
    """Target probability of ids[i] at spots[slot[i]], `slot` ascending, in pieces.

    Raises FloatingPointError when one is not a number.
    """
    step = max(PIECE // logits.shape[-1], 1)
    pieces = [np.zeros(0)]
    for start in range(0, len(spots), step):
        low, high = np.searchsorted(slot, [start, start + step])
        probs = target_probs(logits, spots[start : start + step]).numpy()
        pieces.append(probs[slot[low:high] - start, ids[low:high]])
    p = np.concatenate(pieces)
    if not np.isfinite(p).all():
        raise FloatingPointError("target probabilities are not numbers")
    return p


def coins(
    purpose: Purpose, cases: Sequence[PackedCase], counts: Sequence[int], slots: Ints
) -> Floats:
    """Uniforms for `slots`, the runs of all cases one after the other: counts[i] of case i."""
    keys = np.array([key_of(case.params, case.cursor, purpose) for case in cases], np.uint64)
    seed, choice, rule, purposes, epoch, position = keys.repeat(counts, axis=0).T
    return uniforms(seed, choice, rule, purposes, epoch, position, slots)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """The distribution of the target's token at a rejected slot, norm(max(p - q, 0)): [..., V]
    float64; p where p never exceeds q."""
    rest = (p - q).clamp_(min=0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, p)


def scaled(last: Tensor, alive: Floats) -> Tensor:
    """P p, from which q is subtracted: last [m, V], alive [m]."""
    return last * torch.from_numpy(alive).unsqueeze(-1)
