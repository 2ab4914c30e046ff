"""A tiny random DeepSeek-V4 checkpoint with a DSpark module inside, under the released names."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dspark.model.checkpoint import save_drafter
from dspark.model.config_file import parse_drafter_config
from dspark.model.families import fresh_drafter
from tests.architectures.families import FAMILIES, model_of

MODULE = {
    "dspark_block_size": 5,
    "dspark_markov_rank": 8,
    "dspark_noise_token_id": 127,
    "dspark_target_layer_ids": [1, 2, 3],
    "num_nextn_predict_layers": 3,
    "initializer_range": 0.15,
}


def write(folder: Path) -> None:
    """`folder` is both the target's and the drafter's."""
    model = model_of(FAMILIES["deepseek_v4"])
    model.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text()) | MODULE
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = {
        _released(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    drafter = fresh_drafter(
        parse_drafter_config(settings),
        embedding=tensors["embed.weight"],
        lm_head=tensors["head.weight"],
        generator=torch.Generator().manual_seed(2),
    )
    save_drafter(drafter, folder / "module")
    tensors |= load_file(folder / "module" / "model.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _released(name: str) -> str:
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.")
    return name.replace("hc_head.hc_", "hc_head_")
