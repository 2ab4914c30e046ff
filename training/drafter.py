"""The demo drafter: the samples it learns from and the settings of its run; `training/trainer.py` does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from training import trainer
from training.continuations import Shard
from training.samples import Sample, write_samples
from training.settings import Settings

STEPS = 1_400
ROWS, BLOCKS = 16, 64  # conversations of a step, and blocks of each
HELD_OUT = 24  # rows of the first shard, which is not trained on
RATE, MATRIX_RATE, WARMUP_STEPS = 2e-3, 0.02, 30


def samples_of(shards: Sequence[Shard]) -> Iterator[Sample]:
    """Every row of the shards; the held-out ones come last, where the trainer looks for them."""
    for shard in shards[1:]:
        yield from _rows(shard)
    yield from list(_rows(shards[0]))[:HELD_OUT]


def _rows(shard: Shard) -> Iterator[Sample]:
    for ids, forced in zip(shard["ids"], shard["forced"], strict=True):
        yield Sample(ids, ~forced)


def settings_of(
    target: Path, samples: Path, out: Path, *, seed: int, steps: int, block: int, start: Path | None
) -> Settings:
    """From scratch, or from a released drafter of any block size: then at half the rates, since what is known already
    is not to be thrown over."""
    steps, pace = steps or STEPS, 1.0 if start is None else 0.5
    return Settings(
        target=str(target),
        samples=str(samples),
        out=str(out),
        start="" if start is None else str(start),
        layers=2,
        block_size=block,
        taps=(1, 3, 6, 8, 10),
        markov_rank=64,
        steps=steps,
        batch=ROWS,
        anchors=BLOCKS,
        optimizer="muon",
        schedule="linear",
        rate=pace * RATE,
        matrix_rate=pace * MATRIX_RATE,
        warmup=min(0.5, WARMUP_STEPS / steps),
        precision="bf16",
        seed=seed,
        held_out=HELD_OUT,
        log_every=20,
        evaluate_every=20,
        save_every_s=120.0,
    )


def train(shards: Sequence[Shard], settings: Settings) -> Path:
    """Trains or resumes; returns the folder of the drafter in the released format."""
    write_samples(Path(settings.samples), samples_of(shards))
    return trainer.train_with_bar(settings)
