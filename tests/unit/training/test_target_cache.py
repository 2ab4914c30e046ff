"""The target cache: as large as was said, resumable shard by shard, and read by the run it was made
for only."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.errors import ConfigError
from dspark.model.checkpoint import load_target
from dspark.training.features import (
    CachedFeatures,
    CachePlan,
    Features,
    OnlineFeatures,
    plan_cache,
    write_cache,
)
from dspark.training.samples import Sample, Samples
from tests.unit.training.pipeline import random_samples

LAYERS = (0, 2, 4)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(random_samples(tmp_path / "samples.safetensors"))


def _plan(samples: Samples, shard_bytes: int = 60_000, dtype: str = "float32") -> CachePlan:
    return plan_cache(
        samples,
        target="t",
        target_layer_ids=LAYERS,
        hidden_size=64,
        dtype=dtype,
        shard_bytes=shard_bytes,
    )


class Counting:
    """The target's features, and how often they were asked for."""

    def __init__(self, target: Path, stop_after: int = -1) -> None:
        self._inner, self._left = OnlineFeatures(load_target(target).model, LAYERS), stop_after
        self.asked: list[int] = []

    def of(self, numbers: list[int], samples: list[Sample]) -> list[Features]:
        if self._left == len(self.asked):
            raise KeyboardInterrupt
        self.asked += numbers
        return self._inner.of(numbers, samples)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_the_estimate_is_what_comes_to_lie_on_the_disk(
    dtype: str, size: int, samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan = _plan(samples, dtype=dtype)
    assert plan.bytes_per_token == 64 * (len(LAYERS) + 1) * size
    write_cache(tmp_path / "cache", plan, samples, Counting(golden_target))
    written = sum(path.stat().st_size for path in (tmp_path / "cache").glob("shard-*"))
    assert plan.bytes <= written <= plan.bytes + 400 * len(plan.shards)


def test_a_stopped_writer_computes_only_the_missing_shards(
    samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan, folder = _plan(samples), tmp_path / "cache"
    assert len(plan.shards) >= 3
    assert [n for shard in range(len(plan.shards)) for n in plan.members(shard)] == list(
        range(len(samples))
    )
    first = Counting(golden_target, stop_after=len(plan.members(0)) + 1)
    with pytest.raises(KeyboardInterrupt):
        write_cache(folder, plan, samples, first)
    with pytest.raises(ConfigError, match="lacks"):
        CachedFeatures(folder, plan, samples)
    second = Counting(golden_target)
    write_cache(folder, plan, samples, second)
    assert second.asked == list(range(plan.shards[1], len(samples)))
    read = CachedFeatures(folder, plan, samples)
    wanted = Counting(golden_target)
    for number in (len(samples) - 1, 0, 5, 1):
        (found,), (truth,) = read.of([number], []), wanted.of([number], [samples[number]])
        assert torch.equal(found.taps, truth.taps)
        assert torch.equal(found.last, truth.last)


def _cut_bytes(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-9])


def _cut_rows(shard: Path) -> None:
    save_file({name: rows[:-1].clone() for name, rows in load_file(shard).items()}, shard)


@pytest.mark.parametrize("damage", [_cut_bytes, _cut_rows])
def test_a_shard_that_is_there_in_part_is_missing(
    damage: Callable[[Path], None], samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan, folder = _plan(samples), tmp_path / "cache"
    write_cache(folder, plan, samples, Counting(golden_target))
    damage(folder / "shard-00001.safetensors")
    with pytest.raises(ConfigError, match="lacks 1 of "):
        CachedFeatures(folder, plan, samples)
    again = Counting(golden_target)
    write_cache(folder, plan, samples, again)
    assert again.asked == list(plan.members(1))
    CachedFeatures(folder, plan, samples)


@pytest.mark.parametrize("shards", [None, [], ["a"], [1], [0, 2, 2], [0, 3, 1], [0, 10**9], 5])
def test_a_manifest_of_other_shards_is_refused(
    shards: Any, samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan, folder = _plan(samples), tmp_path / "cache"
    write_cache(folder, plan, samples, Counting(golden_target))
    (folder / "manifest.json").write_text(json.dumps(plan.to_json() | {"shards": shards}))
    with pytest.raises(ConfigError, match=r"cache: shards of .* do not ascend from 0 below"):
        CachedFeatures(folder, plan, samples)


def test_a_cache_of_something_else_is_refused(
    samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan, folder = _plan(samples), tmp_path / "cache"
    write_cache(folder, plan, samples, Counting(golden_target))
    for other in (
        replace(plan, target="u"),
        replace(plan, target_layer_ids=(0, 1, 2)),
        replace(plan, samples="x"),
    ):
        with pytest.raises(ConfigError, match="cache: "):
            CachedFeatures(folder, other, samples)
        with pytest.raises(ConfigError, match="holds a cache of other"):
            write_cache(folder, other, samples, Counting(golden_target))
    with pytest.raises(ConfigError, match="holds no cache"):
        CachedFeatures(tmp_path / "nowhere", plan, samples)
