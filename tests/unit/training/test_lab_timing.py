"""The timed block is the block that is served: every family runs, and the file reads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.lab import timing
from training.lab.plan import Run, dspark
from training.lab.target import Shape

SHAPE = Shape(vocabulary=64, hidden=32, mlp=48, heads=2, kv_heads=1, head_dim=16, layers=6)
RUNS = (
    dspark(layers=1, block=3),
    Run("eagle3", layers=1, block=3),
    Run("mtp", layers=1, block=1),
    Run("lm", layers=1, block=3),
)


def test_every_family_is_timed_and_the_times_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.read_times(tmp_path) == {"machine": {}, "milliseconds": {}}
    monkeypatch.setattr(timing, "TURNS", 1)
    measured = timing.measure(tmp_path, (*RUNS, Run("lm", layers=1, block=3, seed=1)), SHAPE)
    assert list(measured) == [run.kind for run in RUNS]
    assert all(ms > 0 for times in measured.values() for ms in times.values())
    assert timing.read_times(tmp_path)["milliseconds"] == measured
