"""Random checkpoints of given shapes."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dspark.model.config import CONFIG_NAME
from dspark.model.weights_file import SINGLE_NAME
from tests.released.configs import config_of, target_config_of
from tests.released.shapes import Shapes, TargetShape, shape_of, tensors_of

SPREAD = 0.02  # of matrices
_ALIGNMENT = 8  # of a header


def write_random(folder: Path, config: Mapping[str, Any], shapes: Shapes) -> None:
    """`config.json` and a bfloat16 `model.safetensors`. Norms are 1, biases 0."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in sorted(shapes.items()):
        tensors[name] = torch.zeros(shape, dtype=torch.bfloat16)
        if name.endswith(("norm.weight", "layer_scalar")):
            tensors[name].fill_(1.0)
        elif not name.endswith("bias"):
            tensors[name].normal_(0.0, SPREAD, generator=draw)
    save_file(tensors, folder / SINGLE_NAME, metadata={"format": "pt"})


def write_thin(folder: Path, name: str, *, target: Path | None = None) -> None:
    """A released drafter, narrowed, and a random target that it could have been made for."""
    family, shape = shape_of(name, thin=True)
    write_random(folder, config_of(family, shape), tensors_of(family, shape))
    if target is not None:
        write_random_target(target, shape)


def write_random_target(folder: Path, target: TargetShape, *, seed: int = 0) -> None:
    """A decoder of the library with random weights, which never stops by itself."""
    from transformers import AutoConfig, AutoModelForCausalLM

    said = target_config_of(target)
    torch.manual_seed(seed)
    config = AutoConfig.for_model(said.pop("model_type"), **said)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text("{}\n", encoding="utf-8")


def file_size(shapes: Shapes) -> int:
    """Bytes of the file of these tensors in bfloat16, whose header the library pads."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in sorted(shapes.items()):
        stop = at + 2 * math.prod(shape)
        described[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    header = len(json.dumps(described, separators=(",", ":")))
    return 8 + -(-header // _ALIGNMENT) * _ALIGNMENT + at
