"""Verification lengths for one cohort: how many slots of each block the verifier sees.

Pure: numbers in, numbers out, no loop over candidates. Knows nothing of requests, services or time.

Invariant 2, no peeking: whether slot j of a row is admitted depends on that row's confidences up to slot j, on the
other rows and on numbers older than the draft, never on a token or confidence after slot j. Candidates rank by
descending weighted survival, ties to the earlier slot and then the lower row, so whatever depends on the token at
slot j comes later in that order. `greedy` walks it and ends at the first candidate that does not strictly improve the
objective; `async` takes a number of candidates that was fixed before the draft. Running sums are sequential on
purpose: a pairwise sum would let later numbers change the rounding of earlier ones.

Shapes: n sequences, k slots of the longest block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from coordinator.policy import Columns, Kind, Policy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
StepSeconds = Callable[[Floats], Floats]  # tokens in the step -> seconds, element by element


def survival(confidence: Floats, lengths: Ints) -> Floats:
    """Chance that each slot is still alive: [n, k], never increasing along k, 0 beyond each block's length."""
    inside = np.arange(confidence.shape[1]) < lengths[:, None]
    own = np.where(inside & (confidence > 0.0), confidence, 0.0)  # NaN is not above 0
    np.minimum(own, 1.0, out=own)
    for slot in range(1, own.shape[1]):  # over the slots of a block, never over its rows
        own[:, slot] *= own[:, slot - 1]
    return own


def schedule(
    confidence: Floats,  # [n, k] calibrated, conditional on earlier slots being accepted
    lengths: Ints,  # [n] slots drafted
    policies: Columns | Sequence[Policy],  # [n]
    step_seconds: StepSeconds | None,  # convex
    base_tokens: float = 0.0,  # tokens in the step besides anchors and prefixes
    *,
    weights: Floats | None = None,  # [n] what a token of each sequence is worth; 1 when absent
    trust: Floats | None = None,  # [n] what was accepted in the past of what survival promised; 1 when absent
    budget: int | None = None,  # slots for all `async` rows together; without one they verify everything
) -> Ints:
    """Prefix lengths [n]. Without `step_seconds` greedy rows verify everything."""
    columns = policies if isinstance(policies, Columns) else Columns.of(policies)
    rows, slots = len(columns.kind), confidence.shape[1]
    if rows == 0 or slots == 0:
        return np.zeros(rows, np.int64)
    chosen = _own_lengths(columns, confidence, lengths)
    greedy, asynchronous = columns.kind == Kind.GREEDY, columns.kind == Kind.ASYNC
    chosen[greedy | asynchronous] = lengths[greedy | asynchronous]
    ranked = budget is not None and bool(asynchronous.any())
    walked = step_seconds is not None and bool(greedy.any())
    if not ranked and not walked:
        return chosen
    alive = survival(confidence, lengths)
    scale = trust if weights is None else weights if trust is None else weights * trust
    worth = alive if scale is None else alive * scale[:, None]
    if ranked and budget is not None:
        gain = worth[asynchronous]
        chosen[asynchronous] = _leading(gain, _descending(gain), budget)
    if walked and step_seconds is not None:
        others = np.arange(slots) < np.where(greedy, 0, chosen)[:, None]
        expected = (rows if weights is None else float(weights.sum())) + float(worth[others].sum())
        tokens = base_tokens + rows + int(chosen[~greedy].sum())
        gain = worth if greedy.all() else worth[greedy]
        ranks = _descending(gain)
        chosen[greedy] = _leading(gain, ranks, _early_stop(ranks, step_seconds, tokens, expected))
    return chosen


def _own_lengths(columns: Columns, confidence: Floats, lengths: Ints) -> Ints:
    """Lengths of rows whose policy looks at nothing but the row itself; 0 for the others."""
    chosen: Ints = np.minimum(columns.slots, lengths)  # 0 unless fixed
    threshold = columns.kind == Kind.THRESHOLD
    if threshold.any():
        at, drafted = columns.at[threshold, None], lengths[threshold]
        inside = np.arange(confidence.shape[1]) < drafted[:, None]
        below = inside & ~(confidence[threshold] >= at) & (at > 0.0)  # NaN is below
        chosen[threshold] = np.where(below.any(axis=1), below.argmax(axis=1), drafted)
    return chosen


def _descending(gain: Floats) -> Floats:
    """Gains above 0, from the highest to the lowest."""
    flat = gain[gain > 0.0]
    flat.sort()
    return flat[::-1]


def _early_stop(ranks: Floats, step_seconds: StepSeconds, tokens: float, expected: float) -> int:
    """Algorithm 1 from a base of `tokens` and `expected` committed ones: how many candidates are admitted."""
    committed = expected + np.concatenate(([0.0], np.cumsum(ranks)))
    rate = committed / step_seconds(tokens + np.arange(len(ranks) + 1, dtype=np.float64))
    worse = rate[1:] <= rate[:-1]
    return int(worse.argmax()) if worse.any() else len(ranks)


def _leading(gain: Floats, ranks: Floats, count: int) -> Ints:
    """Prefix lengths [n] when the first `count` candidates are admitted. Along a row gains never increase."""
    if count <= 0:
        return np.zeros(len(gain), np.int64)
    least = ranks[min(count, len(ranks)) - 1] if len(ranks) else np.inf
    above = gain > least
    lengths: Ints = above.sum(axis=1, dtype=np.int64)
    tied = np.flatnonzero((gain == least).T)[: max(min(count, len(ranks)) - int(lengths.sum()), 0)]
    return lengths + np.bincount(tied % len(gain), minlength=len(gain)).astype(np.int64)
