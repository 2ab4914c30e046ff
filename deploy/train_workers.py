"""Trains with several workers: Ray Train places them and makes their process group,
`dspark.training` does the work.

Every worker reads the same samples and the same state, and the first one writes, so `out` must be a
folder that all of them see. A worker that dies ends the group; the group starts again from the last
state, at most `RESTARTS` times.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deploy.head import Head, start_head, stop_head
from deploy.process_tags import new_cell_id
from deploy.ray_environment import driving
from dspark.errors import DsparkError
from dspark.runtime.identity import state_dir
from dspark.training.disk import only_writer
from dspark.training.record import StepLog
from dspark.training.settings import Settings
from dspark.training.trainer import LOG, MODEL, train_drafter

Say = Callable[[str], None]

GROUP_TIMEOUT_S = 300
RESTARTS = 3
FOLLOW_EVERY_S = 5.0


def train_with_workers(
    settings: Settings, *, workers: int, gpus: bool, address: str | None, say: Say
) -> Path:
    """Trains on the Ray cluster at `address`, or on a local one that ends with the training.
    Returns the trained model's path; raises DsparkError, at once if another process is training
    there."""
    settings = _absolute(settings)
    with only_writer(Path(settings.out)), _cluster(address, say):
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        trainer = TorchTrainer(
            work,
            train_loop_config=asdict(settings),
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=GROUP_TIMEOUT_S),
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpus),
            run_config=RunConfig(
                storage_path=str(Path(settings.out) / "ray"),
                failure_config=FailureConfig(max_failures=RESTARTS),
            ),
        )
        with _following(Path(settings.out), say):
            result = trainer.fit()
        if result.error is not None:
            raise DsparkError(f"training with {workers} workers failed: {result.error}")
    return Path(settings.out) / MODEL


def work(config: dict[str, Any]) -> None:
    """What every worker runs; its process group is there already."""
    train_drafter(Settings(**config))


def _absolute(settings: Settings) -> Settings:
    """The settings with absolute paths, for workers run in other folders."""
    given = {
        name: getattr(settings, name)
        for name in ("target", "samples", "out", "cache", "start", "keep_tokens")
    }
    full: dict[str, Any] = {
        name: str(Path(path).resolve()) if path and Path(path).exists() else path
        for name, path in given.items()
    }
    return replace(settings, **full | {"out": str(Path(settings.out).resolve())})


@contextmanager
def _cluster(address: str | None, say: Say) -> Iterator[None]:
    """Context: this process is a driver of a cluster; a local one is ended afterwards."""
    head: Head | None = None
    if address is None:
        say("ray: starting a local cluster")
        head = start_head(
            state_dir() / "ray_train_token", new_cell_id(), os.environ, lambda _: None
        )
    try:
        with driving(head.address if head else str(address), local=head is not None):
            yield
    finally:
        if head:
            stop_head(head)


@contextmanager
def _following(out: Path, say: Say) -> Iterator[None]:
    """Context: reports now and then the last step of the training log."""
    over = threading.Event()

    def follow() -> None:
        shown = 0.0
        while not over.wait(FOLLOW_EVERY_S):
            rows = StepLog(out / LOG).read() if (out / LOG).exists() else {}
            if rows.get("step") and rows["step"][-1] > shown:
                shown = rows["step"][-1]
                say(f"step {shown:.0f}: loss {rows['loss'][-1]:.4f}, tau {rows['tau'][-1]:.2f}")

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2 * FOLLOW_EVERY_S)
