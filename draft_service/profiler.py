"""Measures the cost curve of a drafter: seconds of a draft pass by sequences and context length.

A pass is what a round costs: the block forward, the sequential walk, the confidence. Points are
measured in turns, so that a busy moment of the machine spoils one sample of many points and not all
samples of one; medians are reported.
"""

from __future__ import annotations

import time

import torch

from draft_service.engine import DraftEngine, DraftItem
from dspark.runtime.cost_store import Curve, curve_of, key_of, stored_or_measured
from dspark.types import Cursor, SamplingParams

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 1024)
BUDGET_S = 2.0
MOST_SWEEPS = 15
_GREEDY = SamplingParams(temperature=0.0)


def cost_curve(engine: DraftEngine) -> Curve | None:
    """The stored curve of an equal process, else a fresh measurement, which is then stored."""
    key = key_of("draft", engine, layout=1, points=_points(engine), q_entries=engine.q_entries)
    return stored_or_measured(key, lambda: measure(engine))


def measure(engine: DraftEngine, *, budget_s: float = BUDGET_S) -> Curve | None:
    """Times every point several times within the budget, before the process serves. None where no
    point fits."""
    counts, contexts = _points(engine)
    if not counts or not contexts:
        return None
    samples: dict[tuple[int, int], list[float]] = {}
    began = time.perf_counter()
    share = budget_s / len(contexts)
    for at, context in enumerate(contexts):
        opened = _open(engine, counts[-1], context, share / 2)
        sizes = [count for count in counts if count <= opened]
        items = [
            DraftItem(Cursor(n, 1, 1, context + 1), 0, context, _GREEDY) for n in range(opened)
        ]
        for sweep in range(MOST_SWEEPS + 1):
            for count in sizes:
                seconds = _step(engine, items[:count])
                if sweep:  # the first visit pays for memory and kernels that later ones find ready
                    samples.setdefault((count, context), []).append(seconds)
            if sweep >= 2 and time.perf_counter() - began > share * (at + 1):
                break
        for sequence in range(opened):
            engine.contexts.release(sequence, 1)
    return curve_of(samples)


def _points(engine: DraftEngine) -> tuple[list[int], list[int]]:
    """(sequences, contexts) that fit the engine's limits and its pool."""
    config, size = engine.config, engine.config.page_size
    room = engine.held.pages_total // 2
    block = engine.drafter.config.block_size
    contexts = [
        c for c in CONTEXTS if c + block < engine.context_length and 2 * _pages(c, size) <= room
    ]
    most = room // _pages(contexts[-1], size) if contexts else 0
    limits = (config.cost_max_sequences, config.max_batch_sequences, config.max_sequences, most)
    return [n for n in SEQUENCES if n <= min(limits)], contexts


def _open(engine: DraftEngine, count: int, context: int, longest_s: float) -> int:
    """Gives up to `count` sequences a context, until that took `longest_s`: a language model reads
    each of them. Returns how many have one."""
    began = 0.0
    for sequence in range(count):
        problem = engine.pretend(Cursor(sequence, 1, 0, context), context)
        assert problem is None, problem
        began = began or time.perf_counter()  # the first pays for memory and kernels
        if time.perf_counter() - began > longest_s:
            return sequence + 1
    return count


def _pages(context: int, page_size: int) -> int:
    """Number of pages of one sequence that is timed at this context."""
    return -(-(context + 1) // page_size)


def _step(engine: DraftEngine, items: list[DraftItem]) -> float:
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    began = time.perf_counter()
    engine.draft(items)
    return time.perf_counter() - began
