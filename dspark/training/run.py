"""A training run with everything loaded and checked: it computes loss sums and gradients of
samples.

A run has one worker, or several that hold the same drafter and share every step: gradients of the
numerators, denominators and logged sums are added up and never averaged, so the number of workers
changes rounding and nothing else. Launchers make the process group; this file only uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from dspark.errors import ConfigError
from dspark.model.checkpoint import LoadedTarget, fingerprint, load_target
from dspark.model.config import DrafterConfig
from dspark.model.family import Drafter
from dspark.model.placement import pick_device, use
from dspark.training.batches import BatchPlan, SampleBatch, assemble, make_plan, pieces
from dspark.training.disk import content_digest
from dspark.training.features import (
    CachedFeatures,
    CachePlan,
    FeatureSource,
    OnlineFeatures,
    read_manifest,
)
from dspark.training.loss import LossSums
from dspark.training.objective import add_sums, batch_loss
from dspark.training.samples import Samples
from dspark.training.settings import Settings
from dspark.training.shape import make_drafter


@dataclass(slots=True)
class TrainingRun:
    """Everything that a training run needs, loaded."""

    settings: Settings
    world: WorkerGroup
    drafter: Drafter
    samples: Samples
    features: FeatureSource
    target_head: Tensor  # [V, H]
    plan: BatchPlan
    identity: dict[str, str]  # digests of the files that the numbers of a run depend on

    def batches(self, numbers: list[int]) -> Iterator[SampleBatch]:
        """Yields samples in pieces, with features computed piece by piece: `micro_tokens` bounds
        the memory they take, however many conversations a step has."""
        read = [self.samples[number] for number in numbers]
        lengths = [len(sample.ids) for sample in read]
        for places in pieces(lengths, self.settings.micro_tokens):
            some, which = [read[n] for n in places], [numbers[n] for n in places]
            yield assemble(some, which, self.features.of(which, some), self.target_head.device)

    def sums(self, numbers: list[int], key: tuple[int, ...], *, learn: bool) -> LossSums:
        """The loss sums over samples; with `learn`, their gradient is accumulated, too."""
        found = []
        mixed = self.settings.precision == "bf16"
        precision = torch.autocast(self.target_head.device.type, torch.bfloat16, enabled=mixed)
        for batch in self.batches(numbers):
            with torch.set_grad_enabled(learn), precision:
                loss = batch_loss(self.drafter, batch, self.settings, self.target_head, key)
            if learn:
                loss.objective.backward()  # type: ignore[no-untyped-call]
            found.append(loss.sums)
        return add_sums(found)


def precision_on(device: torch.device, settings: Settings) -> str:
    """The precision of a run on a device: bf16 or fp32."""
    auto = "bf16" if device.type == "cuda" else "fp32"
    return auto if settings.precision == "auto" else settings.precision


def open_run(settings: Settings, world: WorkerGroup) -> TrainingRun:
    """Loads and checks everything that a run needs; takes no step. ConfigError names a setting."""
    device = pick_device(settings.device, key="device")
    use(device)
    # Resolved here: a run that is resumed on another device keeps this precision, or is refused.
    settings = replace(settings, precision=precision_on(device, settings))
    mixed = settings.precision == "bf16"
    samples = Samples(Path(settings.samples))
    target = load_target(
        settings.target, dtype=torch.bfloat16 if mixed else torch.float32, device=device
    )
    samples.check_vocabulary(target.vocab_size)
    drafter = make_drafter(target, settings).to(device)
    plan = make_plan(samples, settings)
    if world.size > plan.batch:
        raise ConfigError(
            f"batch: {plan.batch} conversations cannot be shared by {world.size} workers"
        )
    identity = {"samples": samples.digest(), "target": fingerprint(target.folder)}
    if settings.keep_tokens:
        identity["keep_tokens"] = content_digest(Path(settings.keep_tokens))
    if settings.start:
        identity["start"] = fingerprint(settings.start)
    features: FeatureSource = OnlineFeatures(target.model, drafter.target_layer_ids)
    if settings.cache:
        # cached features are rounded to this dtype; those of a running target are not
        dtype = identity["cache"] = read_manifest(Path(settings.cache))["hidden_dtype"]
        whose, layers = identity["target"], drafter.target_layer_ids
        wanted = CachePlan.of(samples, whose, layers, target.hidden_size, dtype)
        features = CachedFeatures(Path(settings.cache), wanted, samples)
    return TrainingRun(
        settings=settings,
        world=world,
        drafter=drafter,
        samples=samples,
        features=features,
        target_head=_target_head(target, drafter.config),
        plan=plan,
        identity=identity,
    )


def _target_head(target: LoadedTarget, config: DrafterConfig) -> Tensor:
    """The target's head [V, H], times what it scales logits by. Raises ConfigError for logits that
    are not its product with the last hidden state: losses are of those."""
    text = target.model.config.get_text_config()
    head, cap = target.model.get_output_embeddings(), getattr(text, "final_logit_softcapping", None)
    if getattr(head, "bias", None) is not None:
        raise ConfigError("target: its head has a bias, which drafters cannot be trained for")
    if cap not in (None, config.logit_softcap):
        raise ConfigError(f"target: its logits are capped at {cap}, those of this drafter are not")
    scale = getattr(text, "logit_scale", None) or getattr(text, "lm_head_multiplier", None) or 1.0
    scale /= getattr(text, "logits_scaling", None) or 1.0
    weight: Tensor = head.weight
    return weight if scale == 1.0 else (weight * scale).detach()


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """One worker's rank in its group, and what the group adds up."""

    rank: int = 0
    size: int = 1

    @staticmethod
    def of_process_group() -> WorkerGroup:
        """The rank in this process's group; a group of one where there is none."""
        if not distributed.is_available() or not distributed.is_initialized():
            return WorkerGroup()
        return WorkerGroup(distributed.get_rank(), distributed.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this worker writes the files of the run."""
        return self.rank == 0

    def add(self, tensor: Tensor) -> Tensor:
        """Adds a tensor up over all workers, in place."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Adds every gradient up over all workers."""
        for parameter in parameters:
            if self.size > 1 and parameter.requires_grad:
                if parameter.grad is None:  # a worker's rows need not reach every parameter
                    parameter.grad = torch.zeros_like(parameter)
                self.add(parameter.grad)

    def wait(self) -> None:
        """Blocks until every worker has called it."""
        if self.size > 1:
            distributed.barrier()
