"""A drafter folder is exactly what its config calls for, or it is refused with the reason."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.checkpoint import fingerprint, load_drafter, load_projection
from dspark.model.config_file import parse_drafter_config, read_drafter_config
from dspark.model.location import locate
from tests.unit.model.golden import DATA, altered, sharded

GOOD = DATA / "dspark_vanilla"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return altered(tmp_path / "drafter", of=GOOD)


def test_many_wrong_tensors_are_named_in_few_words(folder: Path) -> None:
    more = {f"empty.{i}": torch.empty(0) for i in range(1000)}
    altered(folder, tensors=lambda held: held.update(more))
    with pytest.raises(CheckpointError, match=r"unexpected: empty\.0, .* and 992 more"):
        load_drafter(folder)


@pytest.mark.parametrize("load", [load_drafter, load_projection])
def test_a_file_that_is_written_into_changes_nobody_who_has_loaded_it(
    folder: Path, load: Callable[[Path], torch.nn.Module]
) -> None:
    """Cut short, a mapped file would end its readers: verifiers too."""
    loaded = load(folder).state_dict()
    before = {name: tensor.clone() for name, tensor in loaded.items()}
    with (folder / WEIGHTS).open("r+b") as file:
        file.write(bytes((folder / WEIGHTS).stat().st_size))
    assert all(torch.equal(loaded[name], tensor) for name, tensor in before.items())


def test_a_name_in_two_shards_is_refused(folder: Path) -> None:
    name = next(name for name, file in sharded(folder).items() if file == "a.safetensors")
    second = load_file(folder / "b.safetensors")
    save_file(second | {name: torch.zeros(2)}, folder / "b.safetensors")
    with pytest.raises(CheckpointError, match=rf"{name} is also in a\.safetensors"):
        load_drafter(folder)


def test_a_flood_of_names_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark.model.weights_file.MAX_ENTRIES", 10)
    with pytest.raises(CheckpointError, match="more than 10"):
        load_drafter(folder)


def test_shards_load_like_one_file(folder: Path) -> None:
    whole = load_drafter(folder).state_dict()
    sharded(folder)
    for name, tensor in load_drafter(folder).state_dict().items():
        assert torch.equal(tensor, whole[name])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, "leaves the folder") for name in ("../outside.safetensors", "/etc/passwd", "..")),
        ("sub/x.safetensors", "leaves the folder"),
        ("a.bin", "not a safetensors file"),
        ("a" * 300 + ".safetensors", "a.safetensors' is not there"),
    ],
)
def test_what_an_index_may_not_name_is_said(folder: Path, name: str, said: str) -> None:
    shutil.copy(folder / WEIGHTS, folder.parent / "outside.safetensors")
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": {"fc.weight": name}}))
    with pytest.raises(CheckpointError, match=rf"{INDEX}: .*{said}"):
        load_drafter(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickles_are_refused_by_name(folder: Path, name: str) -> None:
    (folder / WEIGHTS).rename(folder / name)
    with pytest.raises(CheckpointError, match=f"pickled weights are refused.*{name}"):
        load_drafter(folder)


def stretched(**more: Any) -> dict[str, Any]:
    """By YaRN."""
    told = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
    return {"rope_parameters": told | {"original_max_position_embeddings": 1024} | more}


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"hidden_size": None}, "hidden_size: missing"),
    ({"hidden_size": "64"}, 'hidden_size: .*found "64"'),
    ({"block_size": 0}, "block_size: .*found 0"),
    ({"block_size": True}, "block_size: .*found true"),
    ({"mask_token_id": 128}, "mask_token_id: .*found 128"),
    ({"num_hidden_layers": 10**9}, "num_hidden_layers: .*found 1000000000"),
    ({"num_attention_heads": 3}, "num_attention_heads: 3 is not a multiple"),
    ({"architectures": ["Qwen3Eagle3Model"], "ttt_length": 7}, "layers: this family has one"),
    ({"model_type": "gemma4_text"}, "global_head_dim: missing"),
    (
        {"model_type": "gemma4_text", "global_head_dim": 16},
        "rope_parameters.full_attention: expected an object",
    ),
    ({"head_dim": 15}, "head_dim: 15 is odd"),
    ({"target_layer_ids": [1, 1]}, r"target_layer_ids: .*found \[1, 1\]"),
    ({"target_layer_ids": [0, 6]}, r"target_layer_ids: .*found \[0, 6\]"),
    ({"target_layer_ids": []}, "target_layer_ids"),
    ({"markov_head_type": "tree"}, 'markov_head_type: .*found "tree"'),
    ({"markov_rank": 0}, "confidence_head_with_markov: true needs"),
    ({"enable_confidence_head": 1}, "enable_confidence_head: .*found 1"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    (
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}},
        'rope_parameters.rope_type: expected default or yarn, found "longrope"',
    ),
    (
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        "rope_parameters.original_max_position_embeddings",
    ),
    ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters.rope_theta"),
    ({"layer_types": ["sliding_attention"] * 2}, "layer_types"),
    ({"attention_bias": True}, "attention_bias: true is not supported, false is"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    (
        {"rope_is_neox_style": False, "rope_interleave": False},
        "rope_is_neox_style and rope_interleave",
    ),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"dtype": "int8"}, "dtype"),
    # Rotations.
    (
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
        'rope_type: .*found "linear"',
    ),
    ({"rope_scaling": {"rope_theta": 10**400}}, r"rope_scaling\.rope_theta: expected a positive"),
    (stretched(factor=0), "rope_parameters.factor"),
    (stretched(truncate=1), "rope_parameters.truncate"),
    (stretched(rope_theta=1.0), "rope_parameters: .* no rotation"),
    (
        {"rope_scaling": stretched(rope_theta=1.0)["rope_parameters"]},
        "rope_scaling: .* no rotation",
    ),
    (stretched(original_max_position_embeddings=0.5), "embeddings: expected a length, found 0.5"),
    (stretched(beta_slow=1e308), "rope_parameters: .*rotation"),
    (
        stretched(factor=1e300, mscale=1e308, mscale_all_dim=1e308),
        "rope_parameters.attention_factor",
    ),
    # Settings inside, against those beside them.
    ({"dflash_config": {"mask_token_id": 3}}, r"dflash_config\.mask_token_id: 3"),
    ({"dflash_config": []}, "dflash_config: expected an object"),
    ({"sample_from_anchor": False, "markov_head_type": "rnn"}, "type: 'rnn' needs sample_from"),
]


@pytest.mark.parametrize(("change", "named"), SETTINGS)
def test_a_wrong_setting_is_named_with_its_value(
    folder: Path, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        load_drafter(altered(folder, change))


def test_null_says_that_a_setting_is_not_there(folder: Path) -> None:
    said = read_drafter_config(folder)
    names = ("attention_bias", "hidden_act", "use_sliding_window", "layer_types")
    assert read_drafter_config(altered(folder, dict.fromkeys(names))) == said


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "deepseek_v4"}, "DeepSeek-V4"),
        ({"dspark_noise_token_id": 128799}, "deepseek_v4"),
        ({"dflash_config": {"projector_type": "domino"}}, "dflash_config.projector_type: 'domino'"),
        ({"architectures": ["DeepseekV3ForCausalLMNextN"], "n_mtp_layers": 3}, "deepseek_v4"),
        (
            {"architectures": ["LlamaForCausalLM"], "block_size": None, "target_layer_ids": None},
            "LlamaForCausalLM",
        ),
    ],
)
def test_families_that_are_not_built_are_refused_by_name(
    folder: Path, change: dict[str, Any], named: str
) -> None:
    altered(folder, change)
    for load in (load_drafter, load_projection):
        with pytest.raises(UnsupportedFamily, match=named):
            load(folder)


def test_rope_theta_may_stand_alone() -> None:
    raw = json.loads((GOOD / "config.json").read_text())
    modern = parse_drafter_config(raw)
    legacy = {key: value for key, value in raw.items() if key != "rope_parameters"} | {
        "rope_theta": 10000
    }
    assert parse_drafter_config(legacy) == modern


def test_a_fingerprint_follows_settings_and_weights(folder: Path) -> None:
    before = fingerprint(folder)
    assert before == fingerprint(GOOD)
    after = fingerprint(altered(folder, tensors=lambda held: held["norm.weight"][0].add_(1)))
    assert len({before, after, fingerprint(altered(folder, {"num_anchors": 9}))}) == 3


def test_a_projection_is_named_by_its_two_tensors_and_its_taps(folder: Path) -> None:
    projection, drafter = load_projection(GOOD), load_drafter(GOOD)
    assert projection.fingerprint == drafter.fingerprint
    features = torch.randn(3, drafter.config.feature_size)
    assert torch.equal(projection.project(features), drafter.project(features))
    altered(folder, tensors=lambda held: held["lm_head.weight"][0].add_(1))
    assert load_projection(folder).fingerprint == projection.fingerprint
    altered(folder, tensors=lambda held: held["fc.weight"][0, 0].add_(1))
    assert load_projection(folder).fingerprint != projection.fingerprint
    altered(folder, {"target_layer_ids": [0, 1, 2, 3, 5]}, of=GOOD)
    assert load_projection(folder).fingerprint != projection.fingerprint


def test_of_a_hub_s_files_those_are_fetched_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ["config.json", "model-00001-of-00002.safetensors", "chat_template.jinja"]
    read.append("additional_chat_templates/tool_use.jinja")
    copies = ["consolidated.safetensors", "original/model.safetensors", "metal/model.bin"]
    fetched: list[str] = []

    def fetch(name: str, **patterns: Any) -> str:
        del patterns["revision"]
        fetched.extend(filter_repo_objects([*read, *copies, "model.py"], **patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert locate("somebody/model") == tmp_path
    assert fetched == read


def _of_the_hub(said: str) -> Exception:
    response: Any = SimpleNamespace(headers={}, status_code=429, request=None)
    return HfHubHTTPError(said, response=response)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("no network\n\nPlease try again."), "OSError: no network"),
        (_of_the_hub("(Request ID: 1)\n\n429 Too Many Requests.\nRetry"), "429 Too Many Requests."),
        (_of_the_hub("Server error '500'\nFor more"), "Server error '500'"),
    ],
)
def test_what_the_hub_says_of_a_name_is_told_in_one_line(
    error: Exception, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(CheckpointError, match=rf"^nosuch: .* its cache \(.*{re.escape(told)}\)$"):
        locate("nosuch")


def test_a_name_that_is_no_folder_and_no_hub_id_is_refused() -> None:
    with pytest.raises(CheckpointError, match="nowhere/at/all"):
        load_drafter("nowhere/at/all")
    with pytest.raises(CheckpointError, match="neither a folder nor"):
        load_drafter("example/not-in-the-cache")
