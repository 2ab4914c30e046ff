"""Random checkpoints of given shapes, of any size, in little memory: tensors go to the file one
piece at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from dspark.model.config import CONFIG_NAME
from dspark.model.weights_file import SINGLE_NAME
from tests.released.configs import config_of, target_config_of
from tests.released.shapes import Shapes, TargetShape, shape_of, tensors_of

SPREAD = 0.02  # of matrices
_PIECE = (1 << 22) + 1  # values drawn; repeated, at a length that no row has, so that rows differ
_ALIGNMENT = 8  # of a header


def write_random(folder: Path, config: Mapping[str, Any], shapes: Shapes, *, seed: int = 0) -> int:
    """`config.json` and a bfloat16 `model.safetensors`; returns the bytes of the latter. Norms are
    1, biases 0."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    generator = torch.Generator().manual_seed(seed)
    drawn = (
        torch.empty(_PIECE)
        .normal_(0.0, SPREAD, generator=generator)
        .bfloat16()
        .view(torch.int16)
        .numpy()
        .tobytes()
    )
    file = folder / SINGLE_NAME
    with file.open("wb") as stream:
        stream.write(_header(shapes))
        at = 0
        for name, shape in sorted(shapes.items()):
            at = _write(stream, name, 2 * math.prod(shape), drawn, at)
    return file.stat().st_size


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
    """Bytes of the file that `write_random` makes of them."""
    return len(_header(shapes)) + 2 * sum(math.prod(shape) for shape in shapes.values())


def _header(shapes: Shapes) -> bytes:
    """As the format's own library writes it, to the byte."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in sorted(shapes.items()):
        stop = at + 2 * math.prod(shape)
        described[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _write(stream: BinaryIO, name: str, size: int, drawn: bytes, at: int) -> int:
    """`size` bytes of one tensor, matrices from place `at` of what was drawn on; returns the place
    after them."""
    if name.endswith(("norm.weight", "layer_scalar")):
        stream.write(
            torch.ones(size // 2, dtype=torch.bfloat16).view(torch.int16).numpy().tobytes()
        )
        return at
    if name.endswith("bias"):
        stream.write(b"\0" * size)
        return at
    for piece in _pieces(drawn, at, size):
        stream.write(piece)
    return (at + size) % len(drawn)


def _pieces(drawn: bytes, at: int, size: int) -> Iterator[memoryview]:
    view = memoryview(drawn)
    while size:
        piece = view[at : at + size]
        yield piece
        size -= len(piece)
        at = 0
