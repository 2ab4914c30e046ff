"""Folders made by somebody who means harm: refused at once, by name, without waiting, building or
fetching anything."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dspark.errors import CheckpointError
from dspark.model.checkpoint import load_drafter, load_projection, load_target
from dspark.model.config_keys import text_keys
from dspark.model.weights_file import read_directory
from tests.unit.model.golden import DATA, altered, sharded

WEIGHTS, CONFIG, INDEX = "model.safetensors", "config.json", "model.safetensors.index.json"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return altered(tmp_path / "drafter", of=DATA / "dspark_vanilla")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return altered(tmp_path / "target", of=DATA / "target_qwen3")


def _text(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text, encoding="utf-8") and None


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _twice(path: Path) -> None:
    path.write_text(path.read_text().replace("{", '{"hidden_size": 64, "hidden_size": 65,', 1))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_pipe, "not a regular file"),
        (_endless, "not a regular file"),
        (_text("[" * 200_000), "not readable as JSON"),
        (_text('{"a":' * 100_000 + "1" + "}" * 100_000), "not readable as JSON"),
        (_text("{" + " " * (5 << 20) + "}"), "bytes, more than"),
        (_text('{"hidden_size": ' + "9" * 5000 + "}"), "not readable as JSON"),
        (_twice, "duplicate name hidden_size"),
    ],
    ids=["pipe", "endless", "deep list", "deep object", "large", "digits", "twice"],
)
@pytest.mark.parametrize("load", [load_drafter, load_projection, load_target])
def test_settings_that_are_no_settings(
    drafter: Path,
    target: Path,
    load: Callable[[Path], Any],
    spoil: Callable[[Path], None],
    named: str,
) -> None:
    folder = target if load is load_target else drafter
    spoil(folder / CONFIG)
    with pytest.raises(CheckpointError, match=rf"config\.json: .*{named}"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": 900}, "num_hidden_layers: 900 layers of"),
        ({"hidden_size": 10**9}, "hidden_size"),
        ({"hidden_size": 65}, "no tensor is"),
        ({"max_position_embeddings": 1}, "max_position_embeddings: .*found 1"),
        (
            {"max_position_embeddings": 1 << 63},
            "max_position_embeddings: .*found 9223372036854775808",
        ),
        ({"vocab_size": "128"}, "vocab_size"),
        ({"intermediate_size": 10**12}, "intermediate_size"),
        ({"num_attention_heads": 1 << 40}, "num_attention_heads"),
        ({"attn_implementation": "somebody/kernels"}, "attn_implementation: .* names code"),
        ({"_attn_implementation": "somebody/kernels@main"}, "_attn_implementation: .* names code"),
        (
            {"attn_implementation": {"a" * 130: "sdpa", "": "somebody/kernels"}},
            "attn_implementation: .* names code",
        ),
        (
            {"vision_config": {"experts_implementation": "somebody/kernels"}},
            r"vision_config\.experts_implementation: .* names code",
        ),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps: nan"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, r"rope_parameters\.rope_theta: inf"),
        ({"rope_parameters": 7}, "target"),
    ],
)
def test_a_target_that_asks_for_more_than_it_brings(
    target: Path, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(CheckpointError, match=named):
        load_target(altered(target, change))


def test_a_tokenizer_that_is_none_is_refused_by_name(drafter: Path) -> None:
    (drafter / "tokenizer.json").write_text('{"model": {"vocab": {"a": Infinity}}}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: .*not readable as a tokenizer"):
        load_drafter(drafter)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ('{"eos_token_id": "</s>"}', 'eos_token_id: expected ids of tokens, found "</s>"'),
        ('{"eos_token_id": [[1]]}', "eos_token_id: expected ids of tokens"),
        ('{"eos_token_id": 1e999}', "eos_token_id: expected ids of tokens"),
        ('{"eos_token_id": [2, ', r"generation_config\.json: not readable as JSON"),
    ],
)
def test_stop_ids_that_are_none_are_refused_by_name(target: Path, said: str, named: str) -> None:
    (target / "generation_config.json").write_text(said)
    with pytest.raises(CheckpointError, match=named):
        load_target(target)


def test_stop_ids_are_those_of_the_vocabulary_and_settings_of_text_those_that_say_something(
    target: Path,
) -> None:
    (target / "generation_config.json").write_text('{"eos_token_id": [2, 128, 7, -1]}')
    assert load_target(target).stop_ids == (2, 7)
    altered(target, {"eos_token_id": 3})
    (target / "generation_config.json").write_text('{"eos_token_id": [128]}')
    assert load_target(target).stop_ids == (3,), "where none can be said, the model's own"
    assert text_keys({"text_config": [1], "hidden_size": 5}).count("hidden_size") == 5


@pytest.mark.parametrize("end", ["</s>", {"content": "</s>"}])
def test_the_tokenizer_s_end_of_text_stops_where_settings_name_none(
    target: Path, end: object
) -> None:
    (target / "tokenizer.json").write_text('{"model": {"vocab": {"a": 4, "</s>": 5}}}')
    (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    assert load_target(target).stop_ids == (1,)
    (target / "generation_config.json").write_text("{}")
    altered(target, {"eos_token_id": None})
    for said, stops in ((end, (5,)), ("lacking", ()), (None, ())):
        (target / "tokenizer_config.json").write_text(json.dumps({"eos_token": said}))
        assert load_target(target).stop_ids == stops


def test_code_beside_a_target_is_not_run(target: Path, tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    (target / "modeling_evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    named = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "modeling_evil.Evil")
    load_target(altered(target, {"auto_map": named}))
    assert not mark.exists()


def test_an_adapter_does_not_lead_elsewhere(target: Path) -> None:
    (target / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else"}')
    with pytest.raises(CheckpointError, match="adapters are not supported"):
        load_target(target)


def test_a_link_to_itself_is_no_file(drafter: Path) -> None:
    (drafter / WEIGHTS).unlink()
    (drafter / WEIGHTS).symlink_to(WEIGHTS)
    with pytest.raises(CheckpointError, match="neither"):
        load_drafter(drafter)


def test_links_of_a_hub_cache_and_in_the_folder_are_followed(drafter: Path, tmp_path: Path) -> None:
    whole = load_drafter(drafter).fingerprint
    store, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    store.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, name in enumerate((WEIGHTS, CONFIG)):
        shutil.copy(drafter / name, store / str(number))
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / str(number))
    assert load_drafter(snapshot).fingerprint == whole
    elsewhere = tmp_path / "by-another-name"
    elsewhere.symlink_to(drafter)
    assert load_drafter(elsewhere).fingerprint == whole


@pytest.mark.parametrize(
    "change",
    [{"fc.weight": "a.safetensors"}, {"no.such.weight": "a.safetensors"}, {"lm_head.weight": None}],
    ids=["elsewhere", "invented", "left out"],
)
def test_an_index_says_what_the_files_say(drafter: Path, change: dict[str, str | None]) -> None:
    held = sharded(drafter)
    assert set(read_directory(drafter)) == held.keys()
    said = {name: file for name, file in (held | change).items() if file}
    assert said != held
    (drafter / INDEX).write_text(json.dumps({"weight_map": said}))
    (name,) = change
    with pytest.raises(CheckpointError, match=f"says otherwise than the files of {name}"):
        load_drafter(drafter)
