"""The target cache: as large as was said, resumable behind the last samples that it counted, and
read by the run it was made for only."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dspark.errors import ConfigError
from dspark.model.checkpoint import load_target
from dspark.training import chain_stages, features
from dspark.training.features import (
    CachedFeatures,
    CachePlan,
    Features,
    OnlineFeatures,
    write_cache,
)
from dspark.training.samples import Sample, Samples
from tests.unit.training.pipeline import random_samples, short_run

LAYERS = (0, 2, 4)


@pytest.fixture
def samples(tmp_path: Path) -> Samples:
    return Samples(random_samples(tmp_path / "samples.safetensors"))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "FLUSH_BYTES", 60_000)


def _plan(samples: Samples, dtype: str = "float32") -> CachePlan:
    return CachePlan.of(samples, "t", LAYERS, 64, dtype)


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
    assert (tmp_path / "cache" / "rows.bin").stat().st_size == plan.bytes


def test_a_cache_may_be_larger_than_the_memory(samples: Samples, tmp_path: Path) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    plan = CachePlan.of(samples, "t", LAYERS, memory // samples.tokens, "float32")
    assert plan.bytes > 4 * memory
    with (tmp_path / "rows.bin").open("wb") as file:
        file.truncate(plan.bytes)
    told = plan.to_json() | {"written": len(samples)}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    CachedFeatures(tmp_path, plan, samples)


def test_a_stopped_writer_goes_on_behind_the_samples_it_counted(
    samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan, folder = _plan(samples), tmp_path / "cache"
    with pytest.raises(KeyboardInterrupt):
        write_cache(folder, plan, samples, Counting(golden_target, stop_after=len(samples) - 1))
    counted = json.loads((folder / "manifest.json").read_text())["written"]
    assert 0 < counted < len(samples) - 1, "what is not known to be on the disk does not count"
    with pytest.raises(ConfigError, match=f"lacks the rows of {len(samples) - counted} of "):
        CachedFeatures(folder, plan, samples)
    second = Counting(golden_target)
    write_cache(folder, plan, samples, second)
    assert second.asked == list(range(counted, len(samples)))
    read, wanted = CachedFeatures(folder, plan, samples), Counting(golden_target)
    for number in (len(samples) - 1, 0, 5, 1):
        (found,), (truth,) = read.of([number], []), wanted.of([number], [samples[number]])
        assert torch.equal(found.taps, truth.taps)
        assert torch.equal(found.last, truth.last)


@pytest.mark.parametrize(
    "damage",
    [
        lambda rows, told: rows.write_bytes(rows.read_bytes()[:-9]),
        *(
            lambda rows, told, count=count: told.write_text(
                json.dumps(json.loads(told.read_text()) | {"written": count})
            )
            for count in (None, "a", [], -1, 0, 13)
        ),
    ],
)
def test_a_sample_whose_rows_are_there_in_part_is_missing(
    damage: Callable[[Path, Path], object], samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan, folder = _plan(samples), tmp_path / "cache"
    write_cache(folder, plan, samples, Counting(golden_target))
    damage(folder / "rows.bin", folder / "manifest.json")
    with pytest.raises(ConfigError, match="lacks the rows of "):
        CachedFeatures(folder, plan, samples)
    again = Counting(golden_target)
    write_cache(folder, plan, samples, again)
    assert again.asked[-1] == 13
    CachedFeatures(folder, plan, samples)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"version": 1}, ".* another version"),
        ({"hidden_dtype": ["float32"]}, "hidden_dtype of .* not bfloat16 or float32"),
        ({"hidden_dtype": "bfloat16"}, "hidden_dtype of .* 'bfloat16', this run needs 'float32'"),
        ({"target": "u"}, "target of .* 'u', this run needs 't'"),
        ({"target_layer_ids": [0, 1, 2]}, "target_layer_ids of "),
        ({"samples": "x"}, "samples of "),
    ],
)
def test_a_cache_of_another_making_is_neither_read_nor_gone_on_with(
    told: dict[str, Any], said: str, samples: Samples, golden_target: Path, tmp_path: Path
) -> None:
    plan = _plan(samples)
    (tmp_path / "manifest.json").write_text(json.dumps(plan.to_json() | told))
    with pytest.raises(ConfigError, match=f"^cache: {said}"):
        CachedFeatures(tmp_path, plan, samples)
    with pytest.raises(ConfigError, match=f"^cache: {said}|holds a cache of other"):
        write_cache(tmp_path, plan, samples, Counting(golden_target))


def test_a_folder_without_a_cache_is_refused(samples: Samples, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no cache \(No such file or directory\)$"):
        CachedFeatures(tmp_path, _plan(samples), samples)


@pytest.mark.parametrize(
    ("precision", "card", "wanted"),
    [
        ("auto", True, "bfloat16"),
        ("auto", False, "float32"),
        ("fp32", True, "float32"),
        ("bf16", False, "bfloat16"),
    ],
)
def test_a_chain_keeps_hidden_states_in_the_precision_of_its_run(
    precision: str,
    card: bool,
    wanted: str,
    golden_target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[CachePlan] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(chain_stages, "make_cache", lambda _, plan, __: plans.append(plan))
    file = random_samples(tmp_path / "samples.safetensors")
    told = {"precision": precision, "device": "auto", "cache": str(tmp_path / "cache")}
    found = chain_stages.cache(short_run(file, golden_target, tmp_path, **told))
    assert [plan.hidden_dtype for plan in plans] == [wanted]
    assert found["bytes"] == plans[0].bytes
