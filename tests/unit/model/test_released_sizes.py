"""Drafters built from the released configurations have the released tensors: names, shapes, and sums."""

from __future__ import annotations

import math

import pytest
import torch

from dspark.model.config_file import parse_drafter_config
from dspark.model.families import build_drafter
from dspark.model.formats.shape_configs import config_of
from dspark.model.formats.shapes import NAMES, shape_of, tensors_of

SIZES = {  # tensors, parameters, parameters without embedding and head
    "dspark_qwen3_4b": (64, 1_393_133_569, 615_221_249),
    "dspark_qwen3_8b": (64, 2_371_081_729, 1_126_422_017),
    "dspark_qwen3_14b": (64, 3_416_263_169, 1_860_438_529),
    "dspark_gemma4_12b": (74, 3_430_444_550, 1_417_178_630),
    "dflash_qwen3_4b": (60, 1_315_339_520, 537_427_200),
    "dflash_qwen3_8b": (60, 2_293_286_144, 1_048_626_432),
    "dflash_qwen3_14b": (60, 3_338_466_560, 1_782_641_920),
    "dflash_gemma4_12b": (70, 3_296_222_725, 1_282_956_805),
    "eagle3_qwen3_4b": (16, 927_344_896, 149_432_576),
    "eagle3_qwen3_8b": (16, 1_546_666_240, 302_006_528),
    "eagle3_qwen3_14b": (16, 2_053_918_976, 498_094_336),
    "eagle3_gemma4_12b": (18, 2_362_269_185, 349_003_265),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_released_drafter_has_the_released_tensors(name: str) -> None:
    family, target = shape_of(name)
    with torch.device("meta"):
        drafter = build_drafter(parse_drafter_config(config_of(family, target)))
    shapes = {stored: tuple(drafter.state_dict()[mine].shape) for mine, stored in drafter.stored_names().items()}
    assert shapes == tensors_of(family, target)
    total = sum(math.prod(shape) for shape in shapes.values())
    ends = 2 * math.prod(shapes["lm_head.weight"])
    assert (len(shapes), total, total - ends) == SIZES[name.rpartition("_")[0]]
    assert drafter.config.family == family
