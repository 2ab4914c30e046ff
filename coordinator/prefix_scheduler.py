"""Verification lengths for one cohort: how many slots of each block the verifier sees.

Pure: numbers in, numbers out. Knows nothing of requests, services or time.

Invariant 2, no peeking: whether slot j of a row is admitted depends on that row's confidences up to slot j, on the
other rows and on numbers older than the draft, never on a token or confidence after slot j. Candidates are taken in
descending survival, ties to the earlier slot and then the lower row, and the walk ends at the first candidate that
does not strictly improve the objective; whatever depends on the token at slot j comes later in that order. Running
sums are sequential on purpose: a pairwise sum would let later numbers change the rounding of earlier ones.

Shapes: n sequences, k slots of the longest block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from coordinator.policy import Fixed, Greedy, Off, Policy, Threshold

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
StepSeconds = Callable[[Floats], Floats]  # tokens in the step -> seconds, element by element, convex


def survival(confidence: Floats, lengths: Ints) -> Floats:
    """Chance that each slot is still alive: [n, k], never increasing along k, 0 beyond each block's length."""
    inside = np.arange(confidence.shape[1]) < lengths[:, None]
    own = np.where(inside & (confidence > 0.0), confidence, 0.0)  # NaN is not above 0
    alive: Floats = np.cumprod(np.minimum(own, 1.0), axis=1, dtype=np.float64)
    return alive


def schedule(
    confidence: Floats,  # [n, k] calibrated, conditional on earlier slots being accepted
    lengths: Ints,  # [n] slots drafted
    policies: Sequence[Policy],  # [n]
    step_seconds: StepSeconds | None,
    base_tokens: int = 0,  # tokens in the step besides anchors and prefixes
) -> Ints:
    """Prefix lengths [n]. Without `step_seconds` greedy rows verify everything."""
    rows = len(policies)
    if rows == 0 or confidence.shape[1] == 0:
        return np.zeros(rows, np.int64)
    fixed = np.array([_own_length(policy, row, confidence, lengths) for row, policy in enumerate(policies)], np.int64)
    greedy = np.array([isinstance(policy, Greedy) for policy in policies])
    if step_seconds is None or not greedy.any():
        return np.where(greedy, lengths, fixed)
    alive = survival(confidence, lengths)
    settled = np.where(np.arange(alive.shape[1]) < np.where(greedy, 0, fixed)[:, None], alive, 0.0)
    tokens = base_tokens + rows + int(fixed[~greedy].sum())
    expected = rows + float(settled.sum())
    admitted = _early_stop(np.where(greedy[:, None], alive, 0.0), step_seconds, tokens, expected)
    return np.where(greedy, admitted, fixed)


def _own_length(policy: Policy, row: int, confidence: Floats, lengths: Ints) -> int:
    """Length of a row whose policy looks at nothing but the row itself."""
    drafted = int(lengths[row])
    match policy:
        case Fixed(slots):
            return min(slots, drafted)
        case Threshold(at):
            below = ~(confidence[row, :drafted] >= at)
            return int(below.argmax()) if at > 0.0 and below.any() else drafted
        case Off() | Greedy():
            return 0


def _early_stop(alive: Floats, step_seconds: StepSeconds, tokens: int, expected: float) -> Ints:
    """Algorithm 1 from a base of `tokens` and `expected` committed ones."""
    row, slot = np.nonzero(alive > 0.0)
    gain = alive[row, slot]
    order = np.lexsort((row, slot, -gain))
    committed = expected + np.concatenate(([0.0], np.cumsum(gain[order])))
    rate = committed / step_seconds(tokens + np.arange(len(order) + 1, dtype=np.float64))
    worse = rate[1:] <= rate[:-1]
    admitted = int(worse.argmax()) if worse.any() else len(order)
    return np.bincount(row[order[:admitted]], minlength=len(alive)).astype(np.int64)
