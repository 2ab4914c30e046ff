"""The released shapes: their published figures, and that thin ones of them load."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from dspark.cli.main import main
from dspark.model.checkpoint import load_drafter
from dspark.model.config_file import parse_drafter_config
from dspark.model.families import build_drafter
from tests.released.configs import config_of
from tests.released.shapes import NAMES, PUBLISHED, TARGETS, shape_of, tensors_of
from tests.released.weights import file_size, write_random, write_thin


@pytest.mark.parametrize("name", NAMES)
def test_a_released_drafter_has_the_released_tensors(name: str) -> None:
    family, target = shape_of(name)
    config = parse_drafter_config(config_of(family, target))
    with torch.device("meta"):
        drafter = build_drafter(config)
    shapes = {
        stored: tuple(drafter.state_dict()[mine].shape)
        for mine, stored in drafter.stored_names().items()
    }
    assert shapes == tensors_of(family, target)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    ends = 2 * math.prod(shapes["lm_head.weight"])
    assert (len(shapes), parameters, parameters - ends, file_size(shapes)) == PUBLISHED[name]
    assert (config.family, config.block_size, config.target_layer_ids) == (family, 7, target.taps)
    assert config.mask_token_id == (-1 if family == "eagle3" else target.mask)


@pytest.mark.parametrize("name", [name for name in NAMES if "_4b_" in name or "gemma4" in name])
def test_thin_ones_load_with_nothing_missing_and_nothing_left(tmp_path: Path, name: str) -> None:
    family, target = shape_of(name, thin=True)
    shapes = tensors_of(family, target)
    assert target.hidden == TARGETS[name.partition("_")[2].rpartition("_")[0]].hidden
    write_random(tmp_path, config_of(family, target), shapes)
    assert file_size(shapes) == (tmp_path / "model.safetensors").stat().st_size
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(shapes)
    drafter = load_drafter(tmp_path, dtype=torch.bfloat16)  # as stored: mapped, not copied
    assert set(drafter.stored_names().values()) == set(shapes)


def test_a_command_checks_and_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, twin, kept = tmp_path / "made", tmp_path / "twin", tmp_path / "kept.json"
    write_thin(made, "eagle3_qwen3_4b_ttt7")
    assert main(["checkpoint", "check", str(made), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["format"], said["family"]) == ("deepspec", "eagle3")
    kept.write_text(json.dumps(list(range(100, 200))))
    assert main(["checkpoint", "convert", str(made), str(twin), "--keep-tokens", str(kept)]) == 0
    assert main(["checkpoint", "check", str(twin)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["format", "speculators"] in shown
    assert ["draft", "vocabulary", "100"] in shown
    kept.write_text("{}")
    assert main(["checkpoint", "convert", str(made), str(twin), "--keep-tokens", str(kept)]) == 1
