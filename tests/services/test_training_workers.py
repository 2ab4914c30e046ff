"""Several workers, with a process group of their own on loopback, train as one does."""

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch import distributed
from torch.multiprocessing import spawn

from deploy import train_workers
from dspark.errors import ConfigError
from dspark.training.disk import only_writer
from dspark.training.trainer import train_drafter
from tests.unit.training.pipeline import check_curves, random_samples, short_run


def work(rank: int, config: dict[str, Any], meeting: Path) -> None:
    """As one of two."""
    distributed.init_process_group(
        "gloo", f"file://{meeting}", timedelta(seconds=120), world_size=2, rank=rank
    )
    train_workers.work(config)
    distributed.destroy_process_group()


@pytest.mark.parametrize("family", ["dspark", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_two_workers_write_the_curve_of_one(
    family: str, golden_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = random_samples(tmp_path / "samples.safetensors", count=11)
    # Five conversations a step and three held out: the shares of the two are not the same size.
    changes = {"family": family, "batch": 5, "held_out": 3, "steps": 3, "rate": 1e-3}
    alone = short_run(samples, golden_target, tmp_path / "alone", **changes)
    both = short_run(samples, golden_target, tmp_path / "both", **changes)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    # daemons, which end with this process whatever they do
    spawn(work, (asdict(both), tmp_path / "meeting"), nprocs=2, daemon=True)
    train_drafter(alone)
    check_curves(alone, both)


def test_a_folder_in_which_another_process_trains_is_refused_before_any_worker_starts(
    golden_target: Path, tmp_path: Path
) -> None:
    """A worker refused alone would be waited for by the others."""
    samples = random_samples(tmp_path / "samples.safetensors", count=4)
    run = short_run(samples, golden_target, tmp_path / "run")
    with only_writer(Path(run.out)), pytest.raises(ConfigError, match="another process"):
        train_workers.train_with_workers(run, workers=2, gpus=False, address=None, say=pytest.fail)
