"""A few random conversations and a short run over them, for the tiny target."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.training.record import StepLog
from dspark.training.samples import Sample, write_samples
from dspark.training.settings import Settings
from dspark.training.trainer import LOG

COLUMNS = ("step", "loss", "tau", "held_out_loss", "held_out_tau")


def check_curves(one: Settings, other: Settings) -> None:
    """Two runs wrote the same numbers."""
    curve, again = (StepLog(Path(settings.out) / LOG).read() for settings in (one, other))
    for name in COLUMNS:
        assert again[name] == pytest.approx(curve[name], rel=2e-4, nan_ok=True)


def random_samples(path: Path, count: int = 14, seed: int = 0) -> Path:
    generator = torch.Generator().manual_seed(seed)

    def made() -> Iterator[Sample]:
        for _ in range(count):
            length = int(torch.randint(12, 40, (1,), generator=generator))
            ids = torch.randint(2, 128, (length,), generator=generator)
            yield Sample(ids, torch.arange(length) >= length // 4)

    write_samples(path, made())
    return path


def short_run(samples: Path, target: Path, out: Path, **changes: Any) -> Settings:
    told: dict[str, Any] = {
        "layers": 1, "markov_rank": 4, "steps": 4, "batch": 6, "anchors": 4, "held_out": 2,
        "rate": 1e-2,
        "log_every": 1, "evaluate_every": 2, "save_every": 2, "precision": "fp32", "device": "cpu",
    }  # fmt: skip
    return Settings(target=str(target), samples=str(samples), out=str(out), **(told | changes))
