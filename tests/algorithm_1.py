"""Algorithm 1 of section 3.2.2 line by line, on live confidences: the yardstick of what plans make
of old ones."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def lengths_of(confidence: Floats, seconds: Callable[[float], float]) -> list[int]:
    """Prefix of each row of confidence [n, k]; seconds of a step by its tokens. Early stop, ties to
    earlier slots."""
    rows, slots = confidence.shape
    alive = np.cumprod(confidence, axis=1)
    candidates = sorted(
        ((r, j) for r in range(rows) for j in range(slots) if alive[r, j] > 0),
        key=lambda c: (-alive[c], c[1], c[0]),
    )
    lengths, tokens, tau = [0] * rows, rows, float(rows)
    best = tau / seconds(tokens)
    for r, j in candidates:
        tokens, tau = tokens + 1, tau + float(alive[r, j])
        if not tau / seconds(tokens) > best:
            break
        best, lengths[r] = tau / seconds(tokens), j + 1
    return lengths
