"""What a training run holds once everything is loaded and checked, and what it computes of some samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dspark.errors import ConfigError
from dspark.model.checkpoint import LoadedTarget, fingerprint, load_target
from dspark.model.config import DrafterConfig
from dspark.model.family import Drafter
from dspark.model.placement import pick_device
from dspark.training import target_cache
from dspark.training.batches import BatchPlan, SampleBatch, assemble, make_plan, pieces
from dspark.training.features import FeatureSource, OnlineFeatures
from dspark.training.loss import LossSums
from dspark.training.objective import add_sums, batch_loss
from dspark.training.samples import Samples
from dspark.training.settings import Settings
from dspark.training.shape import DescribedTarget, make_drafter
from dspark.training.world import WorkerGroup


@dataclass(slots=True)
class TrainingRun:
    """What a training run holds."""

    settings: Settings
    world: WorkerGroup
    drafter: Drafter
    samples: Samples
    features: FeatureSource
    target_head: Tensor  # [V, H]
    device: torch.device
    mixed: bool  # products in bf16
    plan: BatchPlan
    identity: dict[str, str]  # names the content of the samples and of the target

    def batches(self, numbers: list[int]) -> Iterator[SampleBatch]:
        """Samples in pieces, with their features, which are computed when a piece is asked for: `micro_tokens` bounds
        what is held of them, however many conversations a step has."""
        read = [self.samples[number] for number in numbers]
        lengths = [len(sample.ids) for sample in read]
        for places in pieces(lengths, self.settings.micro_tokens):
            some, which = [read[n] for n in places], [numbers[n] for n in places]
            yield assemble(some, which, self.features.of(which, some), self.device)

    def sums(self, numbers: list[int], key: tuple[int, ...], *, learn: bool) -> LossSums:
        """The sums over samples; with `learn`, their gradient is added up, too."""
        found = []
        for batch in self.batches(numbers):
            with torch.set_grad_enabled(learn), self._autocast():
                loss = batch_loss(
                    self.drafter,
                    batch,
                    target_head=self.target_head,
                    anchors=self.settings.anchors,
                    decay=self.settings.decay,
                    key=key,
                )
            if learn:
                loss.objective.backward()  # type: ignore[no-untyped-call]
            found.append(LossSums(*(value.detach() for value in loss.sums)))
        return add_sums(found)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.mixed)


def open_run(settings: Settings, world: WorkerGroup) -> TrainingRun:
    """Loads everything; nothing of the run has happened yet."""
    device = pick_device(settings.device, key="device")
    mixed = settings.precision == "bf16" or (settings.precision == "auto" and device.type == "cuda")
    # As it came out: a run that goes on elsewhere goes on in this precision, or not at all.
    settings = replace(settings, precision="bf16" if mixed else "fp32")
    samples = Samples(Path(settings.samples))
    target = load_target(settings.target, dtype=torch.bfloat16 if mixed else torch.float32, device=device)
    check_vocabulary(samples, target)
    drafter = make_drafter(target, settings).to(device)
    plan = make_plan(
        samples, batch=settings.batch, epochs=settings.epochs, steps=settings.steps, held_out=settings.held_out
    )
    if world.size > plan.batch:
        raise ConfigError(f"batch: {plan.batch} conversations cannot be shared by {world.size} workers")
    identity = {"samples": samples.digest(), "target": fingerprint(target.folder)}
    if settings.keep_tokens:
        identity["keep_tokens"] = hashlib.sha256(Path(settings.keep_tokens).read_bytes()).hexdigest()[:16]
    return TrainingRun(
        settings=settings,
        world=world,
        drafter=drafter,
        samples=samples,
        features=_features(settings, target, drafter.config, samples, identity["target"]),
        target_head=target.model.get_output_embeddings().weight,
        device=device,
        mixed=mixed,
        plan=plan,
        identity=identity,
    )


def check_vocabulary(samples: Samples, target: LoadedTarget | DescribedTarget) -> None:
    """Samples of another tokenizer are refused here, not by an index error a thousand steps later."""
    if samples.largest_id >= target.vocab_size:
        raise ConfigError(
            f"samples: {samples.path} holds token {samples.largest_id}, the target knows {target.vocab_size}"
        )


def _features(
    settings: Settings, target: LoadedTarget, config: DrafterConfig, samples: Samples, name: str
) -> FeatureSource:
    """Of the cache where one is named; else the target stays and runs beside the drafter."""
    if not settings.cache:
        return OnlineFeatures(target.model, config.target_layer_ids)
    expect = target_cache.plan_cache(
        samples, target=name, target_layer_ids=config.target_layer_ids, hidden_size=target.hidden_size
    )
    return target_cache.CachedFeatures(Path(settings.cache), expect, samples)
