"""The demo drafter's run on the common trainer: its samples, its shape, and a start from another block size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dspark.model.checkpoint import load_drafter
from training import drafter, target
from training.continuations import Shard
from training.record import Log
from training.samples import Samples

RECIPE = target.Recipe(hidden=32, layers=12, heads=1, kv_heads=1, mlp=32, context=64)
VOCABULARY = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target.build(RECIPE, VOCABULARY).to(torch.bfloat16).save_pretrained(tmp_path / "target")
    return tmp_path


@pytest.fixture
def shards() -> list[Shard]:
    generator = torch.Generator().manual_seed(0)

    def shard(rows: int, length: int) -> Shard:
        ids = torch.randint(VOCABULARY, (rows, length), generator=generator)
        forced = torch.arange(length).expand(rows, -1) < 4
        return {"ids": ids, "forced": forced}

    return [shard(30, 24), shard(20, 30), shard(3, 40)]


def test_rows_become_samples_and_the_first_shard_is_held_out(shards: list[Shard]) -> None:
    samples = list(drafter.samples_of(shards))
    assert [len(sample.ids) for sample in samples] == [30] * 20 + [40] * 3 + [24] * drafter.HELD_OUT
    assert torch.equal(samples[0].ids, shards[1]["ids"][0])
    assert samples[0].supervised.tolist() == [False] * 4 + [True] * 26


def test_a_run_ends_in_a_drafter_that_another_block_size_starts_from(folder: Path, shards: list[Shard]) -> None:
    def run(name: str, block: int, start: Path | None = None) -> Path:
        settings = drafter.settings_of(
            folder / "target", folder / f"{name}.safetensors", folder / name, seed=0, steps=2, block=block, start=start
        )
        assert settings.rate == (drafter.RATE if start is None else drafter.RATE / 2)
        return drafter.train(shards, replace(settings, log_every=1, evaluate_every=1))

    made = run("first", 7)
    config = load_drafter(made).config
    assert (config.block_size, config.num_hidden_layers, config.target_layer_ids) == (7, 2, (1, 3, 6, 8, 10))
    assert (config.markov_rank, config.dtype, config.family) == (64, "bfloat16", "dspark")
    assert len(Samples(folder / "first.safetensors")) == 23 + drafter.HELD_OUT
    assert all(tau == tau for tau in Log(folder / "first" / "log.csv").read()["held_out_tau"])
    assert load_drafter(run("longer", 11, made)).config.block_size == 11
