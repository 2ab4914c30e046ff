"""The three acceptance rules as their papers write them: one sequence, dense q, slot by slot.

The reference loop uses these; the deployed rules are packed and sparse, and must agree with them.
`coin` gives the uniform of a slot, counted from 1.

Shapes: p [l + 1, V] and q [l, V] float64 for l drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.gumbel import checked_argmax, exponentials
from dspark.decoding.ratio import residual
from dspark.decoding.token_rule import accept_probability
from dspark.types import SamplingParams, SparseQ


def token(
    p: Tensor, q: Tensor, prefix: Sequence[int], coin: Callable[[int], float]
) -> tuple[int, Tensor]:
    """The token rule: (accepted, the distribution that the next token is drawn from)."""
    for slot, token in enumerate(prefix):
        if coin(slot + 1) >= accept_probability(p[slot, token], q[slot, token]):
            return slot, residual(p[slot], q[slot])
    return len(prefix), p[-1]


def block(
    p: Tensor, q: Tensor, prefix: Sequence[int], coin: Callable[[int], float]
) -> tuple[int, Tensor]:
    """The block rule: (accepted, the distribution that the next token is drawn from)."""
    alive = [1.0]
    for slot, token in enumerate(prefix):
        alive.append(min(1.0, alive[-1] * float(p[slot, token] / q[slot, token])))
    if prefix and coin(len(prefix)) < alive[-1]:
        return len(prefix), p[-1]
    for length in range(len(prefix) - 1, 0, -1):
        left = float((alive[length] * p[length] - q[length]).clamp(min=0.0).sum())
        lost = 1.0 - alive[length]
        if coin(length) < (left / (left + lost) if left + lost > 0.0 else 1.0):
            return length, residual(alive[length] * p[length], q[length])
    return 0, residual(p[0], q[0]) if prefix else p[0]


def coupled(
    p: Tensor, prefix: Sequence[int], params: SamplingParams, position: int
) -> tuple[int, int]:
    """The coupled rule from `position` on: (accepted, next token), with drafts kept while the
    target draws the same."""
    for slot, row in enumerate(p):
        token = int(
            checked_argmax(row.unsqueeze(0), exponentials([params], [position + slot], len(row)))[0]
        )
        if slot == len(prefix) or token != prefix[slot]:
            break
    return slot, token


def dense(q: SparseQ, slots: int, vocab: int) -> Tensor:
    """Dense q [slots, V] float64 from the numbers sent, normalised."""
    ids, weights = q.arrays()
    rows = torch.zeros(slots, vocab, dtype=torch.float64)
    rows.scatter_(
        -1, torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(weights.astype(np.float64))
    )
    return rows / rows.sum(dim=-1, keepdim=True)
