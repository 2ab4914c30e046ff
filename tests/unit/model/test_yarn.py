"""Drafters whose rotation is stretched by YaRN: angles as transformers computes them, in either
spelling of a file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from dspark.model.checkpoint import load_drafter
from dspark.model.config_file import config_to_json, parse_drafter_config, read_drafter_config
from tests.unit.model.golden import altered

HEAD, THETA, LONGEST = 16, 1e6, 4096
SETTINGS: list[dict[str, Any]] = [
    {"factor": 4.0, "original_max_position_embeddings": 1024},
    {"factor": 2.5, "original_max_position_embeddings": 512, "beta_fast": 16.0, "beta_slow": 2.0},
    {
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.3,
        "truncate": False,
    },
    {"factor": 40.0, "original_max_position_embeddings": 256, "mscale": 1.0, "mscale_all_dim": 0.7},
]


@pytest.fixture
def folder(golden_drafter: Path, tmp_path: Path) -> Path:
    return altered(tmp_path / "drafter", of=golden_drafter)


@pytest.mark.parametrize("settings", SETTINGS)
def test_angles_are_those_of_the_library(folder: Path, settings: dict[str, Any]) -> None:
    told = {"rope_type": "yarn", "rope_theta": THETA, **settings}
    drafter = load_drafter(
        altered(
            folder, {"rope_parameters": told, "head_dim": HEAD, "max_position_embeddings": LONGEST}
        )
    )
    library = Qwen3Config(head_dim=HEAD, max_position_embeddings=LONGEST, rope_parameters=told)
    frequencies, scale = ROPE_INIT_FUNCTIONS["yarn"](library, torch.device("cpu"))
    positions = torch.arange(0, LONGEST, 97)
    angles = positions[:, None].float() * frequencies
    wanted = torch.cat((angles.cos(), angles.sin()), dim=-1) * scale
    torch.testing.assert_close(drafter.rotary.at(positions), wanted, rtol=0, atol=1e-3)
    assert parse_drafter_config(config_to_json(drafter.config)) == drafter.config


def test_both_spellings_say_the_same(folder: Path) -> None:
    told = {"rope_type": "yarn", "rope_theta": THETA, **SETTINGS[0]}
    current = read_drafter_config(altered(folder, {"rope_parameters": told}))
    older = {
        "rope_parameters": None,
        "rope_theta": THETA,
        "rope_scaling": {"type": "yarn", **SETTINGS[0], "original_max_position_embeddings": 1024.0},
    }
    assert read_drafter_config(altered(folder, older)) == current
    assert current.yarn is not None
