"""The target cache as a stage: its plan from a run's settings, and the target run once over all samples."""

from __future__ import annotations

from pathlib import Path

import torch

from dspark.model.checkpoint import fingerprint, load_target
from dspark.model.placement import pick_device
from dspark.training import record, target_cache
from dspark.training.features import OnlineFeatures
from dspark.training.run import check_vocabulary
from dspark.training.samples import Samples
from dspark.training.settings import Settings
from dspark.training.shape import describe_target, drafter_config


def plan_for(settings: Settings, dtype: str) -> target_cache.CachePlan:
    """What the cache of a run will hold. Reads the target's config and the digests of its files, no weight."""
    target = describe_target(settings.target)
    config = drafter_config(target, settings)
    samples = Samples(Path(settings.samples))
    check_vocabulary(samples, target)
    return target_cache.plan_cache(
        samples,
        target=fingerprint(target.folder),
        target_layer_ids=config.target_layer_ids,
        hidden_size=target.hidden_size,
        dtype=dtype,
    )


def make_cache(settings: Settings, plan: target_cache.CachePlan, folder: Path) -> None:
    """Writes what is missing of the cache, with a progress bar."""
    device = pick_device(settings.device, key="device")
    target = load_target(
        settings.target, dtype=torch.float32 if device.type == "cpu" else torch.bfloat16, device=device
    )
    samples = Samples(Path(settings.samples))
    source = OnlineFeatures(target.model, plan.target_layer_ids)
    with record.progress() as bar:
        task = bar.add_task("cache", total=plan.count, note=f"{plan.bytes / 1e9:.2f} GB")
        target_cache.write_cache(folder, plan, samples, source, lambda done: bar.update(task, completed=done))
