"""Draft time of a block, of every shape in the plan, as a service would draft it. Weights are random and do not matter.

Context entries are there, the block is walked slot by slot with greedy picks. Median of many blocks, in turns over the
drafters, so that a slow moment of the machine does not fall on one of them alone.
"""

import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dspark.model.family import Drafter, Entries
from training.lab.drafters import build
from training.lab.plan import Run, plan
from training.lab.target import SHAPE, Shape
from training.lab.target import build as build_target

CONTEXT = 128  # entries
TURNS, BLOCKS_A_TURN = 12, 5
FILE_NAME = "times.json"


@torch.inference_mode()
def block_seconds(drafter: Drafter, streams: int) -> float:
    """One block for each of `streams` sequences."""
    shape, config = drafter.entry, drafter.config
    generator = torch.Generator().manual_seed(0)
    size = (shape.layers, streams, CONTEXT, shape.kv_heads, shape.head_dim)
    keys, values = (torch.randn(size, generator=generator) for _ in range(2))
    ids = torch.randint(config.vocab_size, (streams,), generator=generator)
    context = Entries(keys, values, torch.full((streams,), CONTEXT))
    rows = torch.randn(streams, config.hidden_size, generator=generator) if drafter.needs.lag else None
    start = time.perf_counter()
    proposal = drafter.propose(
        anchor_ids=ids,
        anchor_positions=torch.full((streams,), CONTEXT + drafter.needs.lag),
        context=context,
        last_rows=rows,
        slots=config.block_size,
    )
    drawn = [ids]
    for _ in range(config.block_size):
        drawn.append(proposal.step(drawn[-1]).argmax(dim=-1))
    proposal.confidence_logits(torch.stack(drawn[:-1], dim=1))
    return time.perf_counter() - start


def measure(folder: Path, runs: Sequence[Run] | None = None, shape: Shape = SHAPE) -> dict[str, dict[str, float]]:
    """Kind -> milliseconds of a block alone and of 16 side by side; also written below `folder`. The plan's runs."""
    target = build_target(shape, layers=shape.layers, seed=0)
    drafters = {}
    for run in plan() if runs is None else runs:
        if run.kind not in drafters and run.stretch == 1:
            drafters[run.kind] = build(run, target).eval()
            drafters[run.kind].serve()
    seconds: dict[str, dict[int, list[float]]] = {kind: {1: [], 16: []} for kind in drafters}
    for turn in range(TURNS + 1):
        for kind, drafter in drafters.items():
            for streams, taken in seconds[kind].items():
                timed = [block_seconds(drafter, streams) for _ in range(BLOCKS_A_TURN)]
                if turn:  # the first turn warms up
                    taken += timed
    times = {
        kind: {str(streams): round(1e3 * statistics.median(taken), 3) for streams, taken in rows.items()}
        for kind, rows in seconds.items()
    }
    machine = {"cores": os.cpu_count(), "cpu": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__}
    written = {"machine": machine, "milliseconds": times}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return times


def read_times(folder: Path) -> dict[str, Any]:
    """What `measure` wrote: the machine, and milliseconds by kind; both empty where nothing was measured."""
    path = folder / FILE_NAME
    if not path.exists():
        return {"machine": {}, "milliseconds": {}}
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
