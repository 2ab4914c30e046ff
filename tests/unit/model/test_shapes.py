"""The released shapes: their published figures, and that thin ones of them load."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from dspark.cli.main import main
from dspark.errors import ConfigError
from dspark.model.checkpoint import load_drafter
from dspark.model.config_file import parse_drafter_config
from dspark.model.formats.random_weights import file_size, write_random
from dspark.model.formats.shape_configs import config_of
from dspark.model.formats.shapes import NAMES, TARGETS, shape_of, tensors_of

# tensors, parameters, bytes of model.safetensors; the 8B one is the published file's to the byte
FIGURES = {
    "dspark_qwen3_4b_block7": (64, 1_393_133_569, 2_786_273_970),
    "dspark_qwen3_8b_block7": (64, 2_371_081_729, 4_742_170_330),
    "dspark_qwen3_14b_block7": (64, 3_416_263_169, 6_832_533_210),
    "dspark_gemma4_12b_block7": (74, 3_430_444_550, 6_860_897_028),
    "dflash_qwen3_4b_block7": (60, 1_315_339_520, 2_630_685_488),
    "dflash_qwen3_8b_block7": (60, 2_293_286_144, 4_586_578_776),
    "dflash_qwen3_14b_block7": (60, 3_338_466_560, 6_676_939_608),
    "dflash_gemma4_12b_block7": (70, 3_296_222_725, 6_592_452_994),
    "eagle3_qwen3_4b_ttt7": (16, 927_344_896, 1_854_691_472),
    "eagle3_qwen3_8b_ttt7": (16, 1_546_666_240, 3_093_334_184),
    "eagle3_qwen3_14b_ttt7": (16, 2_053_918_976, 4_107_839_656),
    "eagle3_gemma4_12b_ttt7": (18, 2_362_269_185, 4_724_540_282),
}


@pytest.mark.parametrize("name", NAMES)
def test_figures_are_the_published_ones(name: str) -> None:
    family, target = shape_of(name)
    shapes = tensors_of(family, target)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    assert (len(shapes), parameters, file_size(shapes)) == FIGURES[name]
    config = parse_drafter_config(config_of(family, target))
    assert (config.family, config.block_size, config.target_layer_ids) == (family, 7, target.taps)
    assert config.mask_token_id == (-1 if family == "eagle3" else target.mask)


@pytest.mark.parametrize("name", [name for name in NAMES if "_4b_" in name or "gemma4" in name])
def test_thin_ones_load_with_nothing_missing_and_nothing_left(tmp_path: Path, name: str) -> None:
    family, target = shape_of(name, thin=True)
    shapes = tensors_of(family, target)
    assert target.hidden == TARGETS[name.partition("_")[2].rpartition("_")[0]].hidden
    size = write_random(tmp_path, config_of(family, target), shapes)
    assert size == file_size(shapes) == (tmp_path / "model.safetensors").stat().st_size
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(shapes)
    drafter = load_drafter(tmp_path, dtype=torch.bfloat16)  # as stored: mapped, not copied
    assert set(drafter.stored_names().values()) == set(shapes)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="dspark_qwen3_4b_block7"):
        shape_of("dspark_qwen3_9b_block7")


def test_the_command_makes_checks_and_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, twin, kept = tmp_path / "made", tmp_path / "twin", tmp_path / "kept.json"
    assert main(["checkpoint", "random", "eagle3_qwen3_4b_ttt7", str(made), "--thin"]) == 0
    assert main(["checkpoint", "check", str(made), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["format"], said["family"], said["missing"], said["unexpected"]) == ("deepspec", "eagle3", 0, 0)
    kept.write_text(json.dumps(list(range(100, 200))))
    assert main(["checkpoint", "convert", str(made), str(twin), "--keep-tokens", str(kept)]) == 0
    assert main(["checkpoint", "check", str(twin)]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["format", "speculators"] in shown
    assert ["draft", "vocabulary", "100"] in shown
    kept.write_text("{}")
    assert main(["checkpoint", "convert", str(made), str(twin), "--keep-tokens", str(kept)]) == 1
    assert main(["checkpoint", "random", "eagle3_qwen3_4b_ttt7", str(made), "--with-target", str(twin)]) == 1
    assert "--thin" in capsys.readouterr().err
