"""Measures the cost curve: seconds of a verification step by tokens in it and context length.

A step is what a round costs: the packed pass, the rule, the projection. Points are visited in
turns, so that a busy moment of the machine spoils one sample of many points and not one point;
medians are reported. The scheduler relies on these numbers, so nothing is guessed: a point that was
not measured has a neighbour's value and is marked.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np
import numpy.typing as npt
import torch

from dspark.runtime.cost_store import Curve, curve_of, key_of, stored_or_measured
from dspark.types import Cursor, SamplingParams, SparseQ
from verify_service.engine import VerifyEngine
from verify_service.sequences import VerifyItem

Floats = npt.NDArray[np.float64]

# Step sizes from coarse to fine: if time is short the curve loses points in between, not its range.
LEVELS = ((1, 8, 32, 128, 512), (2, 4, 16, 64, 256), (3, 6, 12, 24, 48, 96, 192, 384), (5, 7))
TOKENS = tuple(sorted(count for level in LEVELS for count in level))
CONTEXTS = (128, 1024)
PER_SEQUENCE = 8  # most tokens of one sequence; larger steps use more sequences
BUDGET_S = 5.0
MOST_SWEEPS = 15
LEAST_POINTS = 2
_LAW = SamplingParams(temperature=0.0)


def cost_curve(engine: VerifyEngine) -> Curve | None:
    """The stored curve of an equal process, else a new measurement, which is stored."""
    import transformers

    key = key_of(
        "verify",
        engine,
        projection=engine.projection,
        path=engine.attention_path,
        make=engine.make,
        transformers=transformers.__version__,
        points=_points(engine),
        form=3,
    )
    return stored_or_measured(key, lambda: measure(engine))


def measure(engine: VerifyEngine, *, budget_s: float = BUDGET_S) -> Curve | None:
    """Times every point several times within the budget; only while no request is served. None if
    no point fits."""
    tokens, contexts = _points(engine)
    if not tokens or not contexts:
        return None
    samples: dict[tuple[int, int], list[float]] = {}
    # by context: steps of one token each for all sequences of the largest step
    alone: dict[int, list[float]] = {}
    largest: dict[int, int] = {}  # by context: sequences of its largest step
    began = time.perf_counter()
    share = budget_s / len(contexts)
    for at, context in enumerate(contexts):
        open_all(engine, _sequences(tokens[-1]), context)
        # The first visit pays for memory and kernels, and shows which sizes fit the budget.
        sizes = _affordable(engine, tokens, context, share)
        many = _sequences(sizes[-1])
        for sweep in range(MOST_SWEEPS):
            for count in sizes:
                samples.setdefault((count, context), []).append(
                    _step(engine, count, context, _sequences(count))
                )
            alone.setdefault(context, []).append(_step(engine, many, context, many))
            if sweep >= 1 and time.perf_counter() - began > share * (at + 1):
                break
        engine.forget_all()
        largest[context] = many
    curve = curve_of(samples)
    if curve is None:
        return None
    each = [
        _sequence_seconds(curve.tokens, column, float(np.median(alone[context])), largest[context])
        for context, column in zip(contexts, curve.seconds.T, strict=True)
    ]
    if max(largest.values()) == 1:
        return curve
    more = tuple(np.maximum.accumulate(each).tolist())
    return dataclasses.replace(curve, sequence_seconds=more, tokens_per_sequence=PER_SEQUENCE)


def _points(engine: VerifyEngine) -> tuple[list[int], list[int]]:
    """(tokens of a step, contexts) that fit the engine's limits and its pool."""
    limit = min(engine.config.cost_max_tokens, engine.config.max_batch_tokens)
    if engine.attention_path != "paged":
        limit = min(limit, 32)
    size = engine.config.page_size
    room = engine.held.pages_total // 2
    contexts = [
        c
        for c in CONTEXTS
        if c + PER_SEQUENCE + 1 < engine.target.context_length and _pages(c, size) * 2 <= room
    ]
    most = min(engine.config.max_sequences, room // _pages(contexts[-1], size)) if contexts else 0
    return [t for t in TOKENS if t <= limit and _sequences(t) <= most], contexts


def _sequence_seconds(
    tokens: npt.NDArray[np.int64], seconds: Floats, alone: float, count: int
) -> float:
    """Seconds that one more sequence adds to a step of equal tokens, mostly its attention.

    seconds: [tokens], of steps that spread their tokens over few sequences; alone: of a step with
    one token for each of `count` sequences.
    """
    few = _sequences(count)
    return (
        max(alone - float(np.interp(count, tokens, seconds)), 0.0) / (count - few)
        if count > few
        else 0.0
    )


def _affordable(engine: VerifyEngine, tokens: list[int], context: int, share: float) -> list[int]:
    """Step sizes, ascending, that can each be visited once within a third of `share` seconds; at
    least LEAST_POINTS."""
    _step(engine, tokens[0], context, 1)  # a warm-up, so that no size pays for the first step
    kept: list[int] = []
    began = time.perf_counter()
    for level in ((*LEVELS[0], tokens[-1]), *LEVELS[1:]):
        reach = kept[-1] if kept else tokens[-1]
        for count in level:
            if count not in tokens or count in kept or count > reach:
                continue
            if len(kept) >= LEAST_POINTS and time.perf_counter() - began > share / 3:
                return sorted(kept)
            _step(engine, count, context, _sequences(count))
            kept.append(count)
        kept.sort()
    return kept


def _pages(context: int, page_size: int) -> int:
    """Pages of one sequence that is timed at this context length."""
    return -(-(context + PER_SEQUENCE + 1) // page_size)


def _sequences(tokens: int) -> int:
    return -(-tokens // PER_SEQUENCE)


def open_all(engine: VerifyEngine, count: int, context: int) -> None:
    """Sequences 0, 1 ... of this context length, for steps that are timed."""
    for sequence in range(count):
        cursor = Cursor(sequence, 1, 0, context)
        problem = engine.pretend(cursor, _LAW, context + PER_SEQUENCE + 1)
        assert problem is None, problem


def _step(engine: VerifyEngine, tokens: int, context: int, count: int) -> float:
    """One timed step of `tokens` tokens, spread evenly over `count` sequences."""
    items = items_of(tokens, context, count)
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    began = time.perf_counter()
    engine.judge_cohort(items)
    seconds = time.perf_counter() - began
    for sequence in range(count):
        engine.rewind(sequence, context)
    return seconds


def items_of(tokens: int, context: int, count: int) -> list[VerifyItem]:
    """A step of `tokens` tokens, spread evenly over the first `count` sequences."""
    items = []
    for sequence in range(count):
        ids = tuple(range(1, tokens // count + (sequence < tokens % count)))
        cursor = Cursor(sequence, 1, 1, context + 1)
        items.append(VerifyItem(cursor, 0, ids, SparseQ.sure(ids)))
    return items
