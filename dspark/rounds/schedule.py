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

from dspark.rounds.policy import Columns, Kind, Policy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
StepSeconds = Callable[[Floats], Floats]  # tokens in the step -> seconds, element by element

GREEDY, ASYNC = int(Kind.GREEDY), int(Kind.ASYNC)  # arrays are compared with plain numbers four times as fast
STRETCH = 1024  # candidates whose rates are computed together; twice as many each time


def survival(confidence: Floats, lengths: Ints) -> Floats:
    """Chance that each slot is still alive: [n, k], never increasing along k, 0 beyond each block's length.

    Kept slot by slot in memory (a view of [k, n]), which is how everything below walks over it.
    """
    by_slot = confidence.T
    inside = np.arange(len(by_slot))[:, None] < lengths
    own = np.where(inside & (by_slot > 0.0), by_slot, 0.0)  # NaN is not above 0
    np.minimum(own, 1.0, out=own)
    np.cumprod(own, axis=0, out=own)
    return own.T


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
    greedy, asynchronous = columns.kind == GREEDY, columns.kind == ASYNC
    everybody = bool(greedy.all())  # nearly always, and then there is nobody to tell apart
    if everybody:
        chosen = lengths.copy()
    else:
        chosen = _own_lengths(columns, confidence, lengths)
        chosen[greedy | asynchronous] = lengths[greedy | asynchronous]
    ranked = budget is not None and not everybody and bool(asynchronous.any())
    walked = step_seconds is not None and (everybody or bool(greedy.any()))
    if not ranked and not walked:
        return chosen
    alive = survival(confidence, lengths)
    scale = trust if weights is None else weights if trust is None else weights * trust
    worth = alive if scale is None else alive * scale[:, None]
    if ranked and budget is not None:
        gain = worth if asynchronous.all() else worth[asynchronous]
        chosen[asynchronous] = _leading(gain, budget, _rank(gain, budget))
    if walked and step_seconds is not None:
        expected = float(rows) if weights is None else float(weights.sum())
        if everybody:
            tokens, gain = base_tokens + rows, worth
        else:
            others = np.arange(slots) < np.where(greedy, 0, chosen)[:, None]
            expected += float(worth[others].sum())
            tokens, gain = base_tokens + rows + int(chosen[~greedy].sum()), worth[greedy]
        ranks = _descending(gain)
        admitted = _early_stop(ranks, step_seconds, tokens, expected)
        chosen[greedy] = _leading(gain, admitted, float(ranks[admitted - 1]) if admitted else np.inf)
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
    flat = np.sort(gain.T, axis=None)
    return flat[::-1][: int(np.count_nonzero(flat > 0.0))]


def _rank(gain: Floats, count: int) -> float:
    """The `count`-th highest gain, without sorting the others; infinite for none."""
    if count <= 0:
        return float("inf")
    flat = gain.T.ravel()
    place = max(len(flat) - count, 0)
    return float(np.partition(flat, place)[place])


def _early_stop(ranks: Floats, step_seconds: StepSeconds, tokens: float, expected: float) -> int:
    """Algorithm 1 from a base of `tokens` and `expected` committed ones: how many candidates are admitted."""
    committed = np.empty(len(ranks) + 1)
    committed[0] = 0.0
    np.cumsum(ranks, out=committed[1:])
    start, stretch = 0, STRETCH
    while start < len(ranks):  # most walks end early
        stop = min(start + stretch, len(ranks)) + 1
        rate = (expected + committed[start:stop]) / step_seconds(tokens + np.arange(start, stop, dtype=np.float64))
        worse = rate[1:] <= rate[:-1]
        first = int(worse.argmax())
        if worse[first]:
            return start + first
        start, stretch = stop - 1, 2 * stretch
    return len(ranks)


def _leading(gain: Floats, count: int, least: float) -> Ints:
    """Prefix lengths [n] when the first `count` candidates are admitted, the last of which gains `least`.

    Along a row gains never increase, and no candidate gains 0.
    """
    by_slot = gain.T
    if least > 0.0:
        reached: Ints = np.add.reduce(by_slot >= least, axis=0, dtype=np.int64)
        if int(reached.sum()) == count:  # nobody ties with the last
            return reached
    lengths: Ints = np.add.reduce(by_slot > max(least, 0.0), axis=0, dtype=np.int64)
    missing = count - int(lengths.sum())
    if missing <= 0 or least <= 0.0:
        return lengths
    tied = np.flatnonzero(by_slot == least)[:missing]  # the earlier slot, then the lower row
    return lengths + np.bincount(tied % len(gain), minlength=len(gain)).astype(np.int64)
