"""Whether a received sparse q can be the distributions of a sampled draft. No torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

SUM_TOLERANCE = 1e-3  # a float32 q of thousands of entries stays well inside


def sound_q(
    ids: npt.NDArray[np.unsignedinteger],
    probs: npt.NDArray[np.floating],
    draft_ids: Sequence[int],
    vocab: int,
) -> bool:
    """Whether l drafted tokens can have been drawn from these distributions; ids and probs are
    [l, K], and neither l nor K is 0."""
    if ids.max() >= vocab or not probs.min() >= 0:  # false for NaN too
        return False
    sums = np.einsum("ij->i", probs, dtype=np.float64)
    if max(1.0 - float(sums.min()), float(sums.max()) - 1.0) > SUM_TOLERANCE:
        return False
    ranked = np.sort(ids, axis=1)
    if (ranked[:, 1:] == ranked[:, :-1]).any():
        return False
    # of the ids' dtype, so that they are compared without a copy of all ids
    drafted = np.asarray(draft_ids, np.int64).astype(ids.dtype)[:, None]
    inside = np.count_nonzero((ids == drafted) & (probs > 0))
    return bool(inside == len(draft_ids))
