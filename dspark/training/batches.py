"""Which conversations a training step reads, and in what pieces.

Both are functions of (seed, step), so a resumed run skips and repeats none. Every epoch is a fresh
shuffle whose last, incomplete batch is dropped. Worker r of n takes every n-th conversation of a
batch, from the r-th on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dspark.errors import ConfigError
from dspark.training.features import Features
from dspark.training.samples import Sample, Samples
from dspark.training.settings import Settings


class BatchPlan(NamedTuple):
    """How many samples a run trains on, its batch size and its number of steps."""

    used: int  # samples 0 .. used - 1 are trained on, the rest is held out
    batch: int
    steps: int


def trained_on(samples: int, settings: Settings) -> int:
    """How many of the samples are trained on. ConfigError if `held_out` leaves one, or none."""
    used = samples - settings.held_out
    if settings.held_out and used < 2:
        raise ConfigError(
            f"held_out: {settings.held_out} of {samples} conversations, kept for evaluation, leave "
            "fewer than two to train on"
        )
    return used


def make_plan(samples: Samples, settings: Settings) -> BatchPlan:
    """The plan of a run; a batch is at most all that is trained on."""
    used = trained_on(len(samples), settings)
    batch = min(settings.batch, used)
    return BatchPlan(used, batch, settings.steps or settings.epochs * (used // batch))


def numbers_of(plan: BatchPlan, *, seed: int, step: int, rank: int = 0, size: int = 1) -> list[int]:
    """Numbers of the samples that worker `rank` of `size` reads in a step."""
    epoch, place = divmod(step, plan.used // plan.batch)
    order = torch.randperm(plan.used, generator=torch.Generator().manual_seed(seed + epoch))
    return [int(n) for n in order[place * plan.batch : (place + 1) * plan.batch][rank::size]]


def pieces(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Groups indices 0 .. n-1 into pieces of at most `most` tokens, padding to the longest of each
    included, similar lengths together; a longer sample is alone."""
    found: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if not found or (len(found[-1]) + 1) * lengths[found[-1][0]] > most:
            found.append([])
        found[-1].append(place)
    return found


class SampleBatch(NamedTuple):
    """S conversations back to back, N tokens in all."""

    ids: Tensor  # [N] int64
    supervised: Tensor  # [N] bool
    offsets: tuple[int, ...]  # S + 1: where each conversation starts, and the end
    numbers: tuple[int, ...]  # S sample numbers
    features: Tensor  # [N, m*H] raw taps
    last_hidden: Tensor  # [N, H] of the target, final-normed

    @property
    def spans(self) -> list[slice]:
        return [slice(a, b) for a, b in zip(self.offsets, self.offsets[1:], strict=False)]

    @property
    def lengths(self) -> Tensor:
        """Tokens of each conversation, [S]."""
        return torch.tensor(self.offsets, device=self.ids.device).diff()


def assemble(
    samples: Sequence[Sample],
    numbers: Sequence[int],
    features: Sequence[Features],
    device: torch.device,
) -> SampleBatch:
    """One batch of the given conversations, on the device."""
    offsets = [0]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample.ids))
    return SampleBatch(
        ids=torch.cat([sample.ids for sample in samples]).to(device),
        supervised=torch.cat([sample.supervised for sample in samples]).to(device),
        offsets=tuple(offsets),
        numbers=tuple(numbers),
        features=torch.cat([one.taps for one in features]).to(device),
        last_hidden=torch.cat([one.last for one in features]).to(device),
    )


def padded(rows: Tensor, batch: SampleBatch) -> Tensor:
    """rows [N, ...] -> [S, T, ...], zeros behind the end of each conversation."""
    return torch.nn.utils.rnn.pad_sequence([rows[span] for span in batch.spans], batch_first=True)
