"""Whether a received sparse q can be the distributions of a sampled draft. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SUM_TOLERANCE = 1e-3  # a float32 q of thousands of entries stays well inside


def validate_q(
    ids: npt.NDArray[np.integer],
    probs: npt.NDArray[np.floating],
    draft_ids: Sequence[int],
    vocab: int,
) -> str | None:
    """A sentence that says why these are not the distributions of a sampled draft, or None."""
    slots = len(draft_ids)
    if ids.ndim != 2 or ids.shape != probs.shape:
        return f"q: ids have shape {ids.shape} and probabilities {probs.shape}"
    if slots == 0:
        return None if ids.size == 0 else "q: entries without drafted tokens"
    if ids.shape[0] != slots or ids.shape[1] == 0:
        return f"q: {ids.shape[0]} slots of {ids.shape[1]} entries for {slots} drafted tokens"
    if ids.max() >= vocab or (ids.dtype.kind != "u" and ids.min() < 0):
        return f"q_ids: an id is not below the vocabulary size {vocab}"
    if not probs.min() >= 0:  # false for NaN too
        return (
            f"q_probs: a probability is {'negative' if np.isfinite(probs).all() else 'not finite'}"
        )
    sums = np.einsum("ij->i", probs, dtype=np.float64)
    worst = max(1.0 - float(sums.min()), float(sums.max()) - 1.0)
    if worst == np.inf:
        return "q_probs: a probability is not finite"
    if worst > SUM_TOLERANCE:
        return f"q_probs: a slot's probabilities miss a sum of 1 by {worst:.3g}"
    ranked = np.sort(ids, axis=1)
    if (ranked[:, 1:] == ranked[:, :-1]).any():
        return "q_ids: an id appears twice in a slot"
    # of the ids' dtype, so that they are compared without a copy of all ids
    drafted = np.asarray(draft_ids, np.int64).astype(ids.dtype)[:, None]
    if np.count_nonzero((ids == drafted) & (probs > 0)) < slots:  # at most once in each
        return "draft_ids: a drafted token is outside the support of its q"
    return None
