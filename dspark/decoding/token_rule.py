"""Token-wise rejection, the classic rule.

Keep the drafted token x of a slot with probability min(1, p(x) / q(x)); at the first one not kept the target adds a
token from norm(max(p - q, 0)), after all kept ones from p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from dspark.decoding.case import PackedCase, target_probs
from dspark.decoding.draws import DrawsWatch
from dspark.decoding.ratio import (
    Floats,
    coins_of_emission,
    coins_of_slots,
    emit,
    probabilities,
    sent,
    slots_of,
    spots_of,
)
from dspark.decoding.slots import Slots


def accept_probability(p: npt.ArrayLike, q: npt.ArrayLike) -> Floats:
    """Chance to keep a token of target probability p and draft probability q: min(1, p / q), 0 / 0 read as 1."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    kept = np.ones(np.broadcast_shapes(p.shape, q.shape))
    np.divide(p, q, out=kept, where=q > p)
    return kept


def judge_token(logits: Tensor, cases: Sequence[PackedCase], watch: DrawsWatch | None = None) -> list[tuple[int, int]]:
    """(accepted, next token) of sampled sequences: logits [T, V]."""
    slots = slots_of(cases)
    of_entries = probabilities(logits, spots_of(cases), slots.slot, slots.ids)
    p = slots.of_drafted(of_entries)
    kept, rejected = leading_run(p, slots, coins_of_slots(cases, slots))
    if watch is not None:
        note_tokens(watch, cases, slots, of_entries, kept)
    last = target_probs(logits, list(zip(cases, kept, strict=True)))
    return list(zip(kept, emit(last, slots, rejected, coins_of_emission(cases, kept)), strict=True))


def note_tokens(
    watch: DrawsWatch, cases: Sequence[PackedCase], slots: Slots, of_entries: Floats, kept: Sequence[int]
) -> None:
    """of_entries [N]: the target's probabilities of q's entries."""
    p, q = slots.of_drafted(of_entries), slots.of_drafted()
    alive, start = accept_probability(p, q), 0
    for length in slots.lengths:
        alive[start : start + length] = np.cumprod(alive[start : start + length])
        start += length
    before = np.where(slots.within == 1, 1.0, np.roll(alive, 1))[slots.slot]
    watch.note(cases, slots, before * accept_probability(of_entries, slots.probs), alive, alive, sent(slots, q), kept)


def leading_run(p: Floats, slots: Slots, accept_u: Floats) -> tuple[list[int], list[int | None]]:
    """Per sequence: how many slots are kept, and the slot that was not (None if none was). p, accept_u [S]."""
    q = slots.of_drafted()
    kept = (accept_u < accept_probability(p, q)).tolist()
    accepted: list[int] = []
    rejected: list[int | None] = []
    start = 0
    for length, counting in zip(slots.lengths, sent(slots, q), strict=True):
        slot, end = start, start + counting
        while slot < end and kept[slot]:
            slot += 1
        accepted.append(slot - start)
        rejected.append(slot if slot < end else None)
        start += length
    return accepted, rejected
