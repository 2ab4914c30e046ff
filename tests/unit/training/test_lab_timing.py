"""The timed block is the block that is served: every family runs, and the file reads back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dspark.model.checkpoint import save_drafter
from training.lab import drafters, results, timing
from training.lab.plan import Run, dspark
from training.lab.run import result_path
from training.lab.target import Shape, build

SHAPE = Shape(vocabulary=64, hidden=32, mlp=48, heads=2, kv_heads=1, head_dim=16, layers=6)
RUNS = (
    dspark(layers=1, block=3),
    Run("eagle3", layers=1, block=3),
    Run("mtp", layers=1, block=1),
    Run("lm", layers=1, block=3),
)


def test_every_family_is_timed_and_the_times_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.read_times(tmp_path) == {"machine": {}, "milliseconds": {}}
    target = build(SHAPE, layers=SHAPE.layers, seed=0)
    for run in RUNS:
        folder = result_path(tmp_path, run).parent
        save_drafter(drafters.build(run, target), folder / "drafter", dtype=torch.float32)
    found = {
        run.kind: [
            {
                "run": {
                    "family": run.family,
                    "layers": run.layers,
                    "block": run.block,
                    "head": run.head,
                    "seed": 0,
                    "stretch": 1,
                }
            }
        ]
        for run in RUNS
    }
    monkeypatch.setattr(results, "read", lambda folder: found)
    monkeypatch.setattr(timing, "TURNS", 1)
    measured = timing.measure(tmp_path)
    assert list(measured) == [run.kind for run in RUNS]
    assert all(ms > 0 for times in measured.values() for ms in times.values())
    assert timing.read_times(tmp_path)["milliseconds"] == measured
