"""What the two ratio rules share: slots side by side, target probabilities at them, keyed coins, the emission.

Both weigh the target's probability p of a drafted token against q, the probability it was drawn with. They are exact
for any q, provided it is the q that the token was drawn from (invariant 3), that sending the slot did not depend on
the token (invariant 2), and that no draw is used twice (invariant 4). Everything is float64.

Symbols: S slots of all sequences, N entries of their sparse q, m sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.case import PackedCase, Spot, target_probs
from dspark.decoding.philox import Purpose, uniforms
from dspark.decoding.sampling import draw
from dspark.decoding.slots import Slots

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

PIECE = 1 << 16  # probabilities a CPU works on at a time


def slots_of(cases: Sequence[PackedCase]) -> Slots:
    """The drafted slots of all sequences."""
    return Slots.of(
        [case.draft_ids for case in cases],
        [np.frombuffer(case.q.ids, "<u4") for case in cases],
        [np.frombuffer(case.q.probs, "<f4") for case in cases],
        [case.q.entries for case in cases],
    )


def spots_of(cases: Sequence[PackedCase]) -> list[Spot]:
    """Every drafted slot, in the order of `slots_of`."""
    return [(case, slot) for case in cases for slot in range(len(case.draft_ids))]


def probabilities(logits: Tensor, spots: Sequence[Spot], slot: Ints, ids: Ints) -> Floats:
    """Target probability of ids[i] at spots[slot[i]], `slot` ascending. In pieces that a CPU's cache holds.

    Raises FloatingPointError when one is not a number.
    """
    step = max(PIECE // logits.shape[-1], 1) if logits.device.type == "cpu" else max(len(spots), 1)
    pieces = [np.zeros(0)]
    for start in range(0, len(spots), step):
        probs = target_probs(logits, spots[start : start + step])
        low, high = np.searchsorted(slot, [start, start + step])
        row, column = (torch.from_numpy(part[low:high]).to(probs.device) for part in (slot - start, ids))
        pieces.append(probs[row, column].cpu().numpy())
    p = np.concatenate(pieces)
    if not np.isfinite(p).all():
        raise FloatingPointError("target probabilities are not numbers")
    return p


def coins(purpose: Purpose, cases: Sequence[PackedCase], counts: Sequence[int], slots: Ints) -> Floats:
    """Draws for the next `counts` of `slots`, case after case."""
    names = [
        (case.params.seed, case.params.choice, int(case.params.rule), case.cursor.epoch, case.cursor.anchor_position)
        for case in cases
    ]
    if len(names) == 1:
        seed, choice, rule, epoch, position = names[0]
        return uniforms(seed, choice, rule, purpose, epoch, position, slots)
    seed, choice, rule, epoch, position = np.array(names, np.uint64).repeat(counts, axis=0).T
    return uniforms(seed, choice, rule, purpose, epoch, position, slots)


def coins_of_slots(cases: Sequence[PackedCase], slots: Slots) -> Floats:
    """The coin of every drafted slot: [S]."""
    return coins(Purpose.ACCEPT, cases, slots.lengths, slots.within)


def coins_of_emission(cases: Sequence[PackedCase], accepted: Sequence[int]) -> Floats:
    """The coin of the token the target adds: [m]."""
    return coins(Purpose.EMIT, cases, [1] * len(cases), np.array(accepted) + 1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """What the target adds where a drafted token was not kept: [..., V] float64; p where p never exceeds q."""
    rest = (p - q).clamp_(min=0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, p)


def emit(last: Tensor, slots: Slots, rejected: Sequence[int | None], emit_u: Floats) -> list[int]:
    """The token the target adds to each sequence, from the row [m, V] where its run ended.

    `rejected` names the slot whose q is taken off, None where nothing is.
    """
    probs = residual(last, slots.dense(rejected, last))
    ids: list[int] = draw(probs, torch.from_numpy(emit_u).to(last.device)).tolist()
    return ids


def sent(slots: Slots, q: Floats) -> list[int]:
    """Slots of each sequence that count.

    A token that its q cannot produce was never drawn from it: its slot counts as not sent, and so do those after it.
    That keeps the distribution and keeps tokens of probability zero out, instead of accepting whatever arrived.
    """
    possible = (q > 0).tolist()
    lengths, start = [], 0
    for length in slots.lengths:
        lengths.append(next((k for k in range(length) if not possible[start + k]), length))
        start += length
    return lengths
