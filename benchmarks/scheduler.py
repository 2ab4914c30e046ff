"""How long the scheduler takes (row 3.5): confidences of a cohort in, prefix lengths out, and nothing else.

`greedy` is Algorithm 1 on the convex fit; `async` finds its budget in older survivals and ranks the live ones. Beside
them, in the same run, Algorithm 1 as the paper writes it: a loop over sorted candidates.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.row import Row, note
from coordinator.scheduling.budget import Budget
from coordinator.scheduling.cost_curve import CostCurve
from dspark.rounds.policy import Async, Columns, Greedy, Policy
from dspark.rounds.schedule import Floats, StepSeconds, schedule, survival

SLOTS = 7
CONTEXT = 512.0
MOST_MS = {256: 0.2, 1024: 0.8, 4096: 4.0}
TOKENS = tuple(1 << power for power in range(16))
CONTEXTS = (128, 1024)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row per size")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    args = parser.parse_args(argv)
    failed = 0
    for sequences, most_ms in MOST_MS.items():
        value = _measure(sequences, 60 if args.quick else 300)
        note(f"{sequences} sequences: {value}")
        holds = max(value["greedy"], value["async"]) <= most_ms
        name = f"the scheduler alone, {sequences} sequences x {SLOTS} slots, ms"
        failed |= Row(f"3.5 {sequences}", name, value, f"at most {most_ms:g} ms", holds).show(as_json=args.json)
    return failed


def _measure(sequences: int, repetitions: int) -> dict[str, float]:
    """Median milliseconds of each policy; the loop is timed a few times only."""
    rng = np.random.default_rng(sequences)
    older, lengths = rng.beta(4.0, 1.0, (sequences, SLOTS)), np.full(sequences, SLOTS)
    cohorts = [rng.beta(4.0, 1.0, (sequences, SLOTS)) for _ in range(8)]
    # A pass that a few hundred tokens fill, so that about half of the candidates are admitted.
    curve = CostCurve(TOKENS, CONTEXTS, [base + t * 4e-3 / sequences for t in TOKENS for base in (5e-3, 6e-3)])
    convex, stairs = curve.column(CONTEXT), curve.stairs(CONTEXT)
    budget = Budget()
    budget.remember(survival(older, lengths))

    def run(policy: Policy) -> Callable[[Floats], object]:
        columns = Columns.of([policy] * sequences)

        def once(confidence: Floats) -> object:
            slots = budget.slots(sequences, sequences, sequences, stairs) if isinstance(policy, Async) else None
            return schedule(confidence, lengths, columns, convex, budget=slots)

        return once

    return {
        "greedy": _milliseconds(run(Greedy()), cohorts, repetitions),
        "async": _milliseconds(run(Async()), cohorts, repetitions),
        "written out": _milliseconds(lambda confidence: _written_out(confidence, convex), cohorts, 5),
    }


def _milliseconds(once: Callable[[Floats], object], cohorts: list[Floats], repetitions: int) -> float:
    taken = []
    for number in range(repetitions):
        began = time.perf_counter()
        once(cohorts[number % len(cohorts)])
        taken.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(taken), 4)


def _written_out(confidence: Floats, step: StepSeconds) -> list[int]:
    """Algorithm 1, line by line."""
    seconds = step(np.arange(confidence.size + len(confidence) + 1, dtype=np.float64)).tolist()
    survivals = np.cumprod(confidence, axis=1).tolist()
    candidates = sorted((-a, slot, row) for row, its in enumerate(survivals) for slot, a in enumerate(its) if a > 0.0)
    lengths, tokens, expected = [0] * len(survivals), len(survivals), float(len(survivals))
    best = expected / seconds[tokens]
    for negative, slot, row in candidates:
        tokens, expected = tokens + 1, expected - negative
        if expected / seconds[tokens] <= best:
            break
        best = expected / seconds[tokens]
        lengths[row] = slot + 1
    return lengths


if __name__ == "__main__":
    sys.exit(main())
