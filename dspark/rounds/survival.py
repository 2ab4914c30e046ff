"""The survival of slots, from the confidences of a block. Pure.

Shapes: n sequences, k slots of the longest block.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def survival(confidence: Floats, lengths: Ints) -> Floats:
    """Chance that each slot is still alive: [n, k], never increasing along k, 0 beyond each block's
    length.

    Kept slot by slot in memory (a view of [k, n]). The product is a running one: a pairwise one
    would let later confidences change the rounding of earlier slots.
    """
    by_slot = confidence.T
    inside = np.arange(len(by_slot))[:, None] < lengths
    own = np.where(inside & (by_slot > 0.0), by_slot, 0.0)  # NaN is not above 0
    np.minimum(own, 1.0, out=own)
    np.cumprod(own, axis=0, out=own)
    return own.T
