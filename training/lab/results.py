"""Finished runs, read back and put side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.lab.plan import Run, plan
from training.lab.run import read_result
from training.lab.statistics import Counts, conditional

Result = Mapping[str, Any]
Results = Mapping[str, Sequence[Result]]  # kind -> one per seed, in the plan's order


def read(folder: Path, runs: Sequence[Run] | None = None) -> dict[str, list[Result]]:
    """The runs of the plan that are finished."""
    found: dict[str, list[Result]] = {}
    for run in plan() if runs is None else runs:
        result = read_result(folder, run)
        if result is not None:
            found.setdefault(run.kind, []).append(result)
    return found


def counts(result: Result, temperature: str) -> Counts:
    """Domain -> rounds and emitted tokens by prompt, [prompts, 2]."""
    domains = result["judged"][temperature]
    return {domain: np.array(row["prompts"], np.int64) for domain, row in domains.items()}


def of_seeds(results: Sequence[Result], temperature: str) -> list[Counts]:
    return [counts(result, temperature) for result in results]


FEWEST = 50  # rounds at a slot


def acceptance(results: Sequence[Result], temperature: str, domain: str) -> list[float]:
    """Conditional acceptance by slot, rounds of all seeds pooled; not a number where too few rounds tell."""
    rows = [result["judged"][temperature][domain] for result in results]
    survived = np.sum([row["survived"] for row in rows], axis=0)
    rounds = sum(count for row in rows for count, _ in row["prompts"])
    return conditional([int(value) for value in survived], rounds, FEWEST)
