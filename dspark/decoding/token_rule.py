"""Token-wise rejection, the classic rule.

Keep the drafted token x of a slot with probability min(1, p(x) / q(x)); at the first one not kept
the target adds a token from norm(max(p - q, 0)), after all kept ones from p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dspark.decoding.draws import DrawsWatch
from dspark.decoding.slots import Floats, PackedCase, Slots


def accept_probability(p: npt.ArrayLike, q: npt.ArrayLike) -> Floats:
    """Chance to keep a token of target probability p and draft probability q: min(1, p / q), 0 / 0
    read as 1."""
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    kept = np.ones(np.broadcast_shapes(p.shape, q.shape))
    np.divide(p, q, out=kept, where=q > p)
    return kept


def note_tokens(
    watch: DrawsWatch, cases: Sequence[PackedCase], slots: Slots, p: Floats, kept: Sequence[int]
) -> None:
    """Records a call of the token rule, a `ratio.Note`."""
    alive = accept_probability(slots.of_drafted(p), slots.q)
    for start, length in zip(slots.starts, slots.lengths, strict=True):
        alive[start : start + length] = np.cumprod(alive[start : start + length])
    before = np.where(slots.within == 1, 1.0, np.roll(alive, 1))[slots.slot]
    watch.note(cases, slots, before * accept_probability(p, slots.probs), alive, alive, kept)


def leading_run(p: Floats, slots: Slots, accept_u: Floats) -> tuple[list[int], None]:
    """The token rule, a `ratio.Decide`: keeps the drafts before the first rejected one."""
    kept = (accept_u < accept_probability(slots.of_drafted(p), slots.q)).tolist()
    accepted = [
        next((k for k in range(counting) if not kept[start + k]), counting)
        for start, counting in zip(slots.starts, slots.counting, strict=True)
    ]
    return accepted, None
