"""Measures the cost curve of a drafter: seconds of a draft pass by sequences and context length.

A pass is what a round costs: the block forward, the sequential walk, the confidence. Points are
measured in turns, so that a busy moment of the machine spoils one sample of many points and not all
samples of one; medians are reported.
"""

from __future__ import annotations

import time

import torch

from draft_service.engine import DraftEngine, DraftItem
from dspark.runtime.cost_store import Curve, curve_of, processor, stored_or_measured
from dspark.types import Cursor, SamplingParams

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (128, 1024)
BUDGET_S = 2.0
MOST_SWEEPS = 15
_LAW = SamplingParams(temperature=0.0)


def cost_curve(engine: DraftEngine) -> Curve | None:
    """The stored curve of an equal process, else a fresh measurement, which is then stored."""
    return stored_or_measured(_key(engine), lambda: measure(engine))


def measure(engine: DraftEngine, *, budget_s: float = BUDGET_S) -> Curve | None:
    """Times every point several times within the budget, before the process serves. None where no
    point fits."""
    size = engine.config.page_size
    room = engine.held.pages_total // 2
    block = engine.drafter.config.block_size
    contexts = [
        c for c in CONTEXTS if c + block < engine.context_length and 2 * _pages(c, size) <= room
    ]
    most = room // _pages(contexts[-1], size) if contexts else 0
    limits = (
        engine.config.cost_max_sequences,
        engine.config.max_batch_sequences,
        engine.config.max_sequences,
        most,
    )
    counts = [n for n in SEQUENCES if n <= min(limits)]
    if not counts or not contexts:
        return None
    samples: dict[tuple[int, int], list[float]] = {}
    began = time.perf_counter()
    share = budget_s / len(contexts)
    for at, context in enumerate(contexts):
        for sequence in range(counts[-1]):
            problem = engine.pretend(Cursor(sequence, 1, 0, context), context)
            assert problem is None, problem
        items = [
            DraftItem(Cursor(n, 1, 1, context + 1), 0, context, _LAW) for n in range(counts[-1])
        ]
        for sweep in range(MOST_SWEEPS + 1):
            for count in counts:
                seconds = _step(engine, items[:count])
                if sweep:  # the first visit pays for memory and kernels that later ones find ready
                    samples.setdefault((count, context), []).append(seconds)
            if sweep >= 2 and time.perf_counter() - began > share * (at + 1):
                break
        for sequence in range(counts[-1]):
            engine.release(sequence, 1)
    return curve_of(samples)


def _pages(context: int, page_size: int) -> int:
    """Number of pages of one sequence that is timed at this context."""
    return -(-(context + 1) // page_size)


def _step(engine: DraftEngine, items: list[DraftItem]) -> float:
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)
    began = time.perf_counter()
    engine.draft(items)
    return time.perf_counter() - began


def _key(engine: DraftEngine) -> dict[str, object]:
    return {
        "role": "draft",
        "model": engine.fingerprint,
        **processor(),
        "device": str(engine.device)
        if engine.device.type == "cpu"
        else torch.cuda.get_device_name(engine.device),
        "dtype": engine.dtype,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "layout": 1,
        "limit": engine.config.cost_max_sequences,
        "contexts": [c for c in CONTEXTS if c < engine.context_length],
    }
