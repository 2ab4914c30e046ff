"""Targets stored in few bits, loaded through the library's own quantisers: ids are those of the
library's own run.

On a CPU the library turns them into full numbers; a drafter is trained for them as for any other
target.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark.errors import CheckpointError
from dspark.model.checkpoint import load_drafter, load_target
from dspark.training.trainer import train_drafter
from tests.architectures import matrix
from tests.architectures.families import FAMILIES, Family, model_of
from tests.unit.model.golden import altered, without
from tests.unit.training.pipeline import random_samples, short_run

pytest.importorskip("accelerate")

BLOCK = 128
LARGEST = 448.0  # of e4m3


def rewritten(
    folder: Path, family: Family, change: Callable[[str, Tensor], dict[str, Tensor]], told: Any
) -> None:
    """A random model, its tensors changed one by one, and what config.json says of it."""

    def each(tensors: dict[str, Tensor]) -> None:
        for name in tuple(tensors):
            tensors |= change(name, tensors.pop(name))

    model_of(family).save_pretrained(folder)
    altered(folder, {"quantization_config": told}, each)


def fp8(folder: Path) -> None:
    """As DeepSeek and Qwen release it: e4m3, a scale per block of 128 x 128."""

    def change(name: str, weight: Tensor) -> dict[str, Tensor]:
        if "layers" not in name or not name.endswith("proj.weight"):
            return {name: weight}
        scales = torch.stack(
            [
                torch.stack([part.abs().max() / LARGEST for part in row.split(BLOCK, dim=1)])
                for row in weight.split(BLOCK)
            ]
        )
        spread = scales.repeat_interleave(BLOCK, 0)[: weight.shape[0]].repeat_interleave(BLOCK, 1)
        return {
            name: (weight / spread[:, : weight.shape[1]]).to(torch.float8_e4m3fn),
            f"{name}_scale_inv": scales,
        }

    family = FAMILIES["qwen3"]._replace(
        more={"hidden_size": 128, "intermediate_size": 160, "head_dim": 32}
    )
    told = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    rewritten(folder, family, change, told)


def mxfp4(folder: Path) -> None:
    """As gpt-oss is released: the experts in e2m1, a power of two per 32 values."""
    draw = torch.Generator().manual_seed(1)

    def change(name: str, weight: Tensor) -> dict[str, Tensor]:
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return {name: weight}
        experts, size, out = weight.shape
        blocks = torch.randint(0, 256, (experts, out, size // 32, 16), generator=draw)
        scales = torch.randint(121, 124, (experts, out, size // 32), generator=draw)
        return {f"{name}_blocks": blocks.to(torch.uint8), f"{name}_scales": scales.to(torch.uint8)}

    known = FAMILIES["gpt_oss"]
    rewritten(
        folder,
        known._replace(more={**known.more, "intermediate_size": 64}),
        change,
        {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                "lm_head",
            ],
        },
    )  # fmt: skip


FORMATS = {"fp8": fp8, "mxfp4": mxfp4}


@pytest.mark.parametrize("name", FORMATS)
def test_a_quantised_target_answers_as_the_library_does(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    FORMATS[name](tmp_path)
    row = matrix.compare(tmp_path, name)
    assert row.wrong == []
    assert (row.backend, row.answers) == ("paged", 15)


@pytest.mark.parametrize("name", FORMATS)
def test_a_drafter_is_trained_for_it(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / "target")
    samples = random_samples(tmp_path / "samples.safetensors")
    folder = train_drafter(
        short_run(samples, tmp_path / "target", tmp_path / "run", family="dspark", steps=1)
    )
    assert load_drafter(folder, target=tmp_path / "target").config.family == "dspark"


@pytest.mark.parametrize("kind", FORMATS)
def test_a_weight_without_its_scale_is_told_by_its_name(kind: str, tmp_path: Path) -> None:
    FORMATS[kind](tmp_path)
    names = load_file(tmp_path / "model.safetensors")
    name = next(name for name in names if name.endswith(("_scale_inv", "_scales")))
    altered(tmp_path, tensors=without(name))
    weight = name.replace("_scales", "_blocks").removesuffix("_scale_inv")
    with pytest.raises(CheckpointError, match=f"without a scale: {re.escape(weight)}"):
        load_target(tmp_path)


def test_numbers_in_few_bits_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    fp8(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    altered(tmp_path, tensors=lambda held: held[name].view(torch.uint8)[0, 0].fill_(0x7F))
    with pytest.raises(CheckpointError, match=f"{re.escape(name)} holds NaN"):
        load_target(tmp_path)


def test_a_format_whose_package_is_missing_is_refused_by_its_name(tmp_path: Path) -> None:
    fp8(tmp_path)
    altered(tmp_path, {"quantization_config": {"quant_method": "hqq", "quant_config": {}}})
    with pytest.raises(CheckpointError, match=r"(?i)hqq"):
        load_target(tmp_path)
