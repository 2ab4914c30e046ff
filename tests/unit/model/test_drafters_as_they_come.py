"""Drafters of other shapes and spellings than the first released ones: they load, fit their target
and draft.

Each is the shipped drafter, or a random one, written the way that trainers write theirs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.checkpoint import load_drafter, load_projection, save_drafter
from dspark.model.config_file import parse_drafter_config, read_drafter_config
from dspark.model.formats.convert import to_speculators, without_tables
from dspark.model.formats.report import report
from dspark.types import Block
from tests.draft_steps import draft_engine, fill, item
from tests.unit.model.golden import DATA, TARGET, altered, fresh, without

DRAFTER = DATA / "dspark_vanilla"
TABLES = ("embed_tokens.weight", "lm_head.weight")


def neighbours(tensor: Tensor, head_dim: int) -> Tensor:
    """Rows of heads whose pairs lie half a head apart, written as neighbours."""
    order = torch.stack(
        (torch.arange(head_dim // 2), torch.arange(head_dim // 2) + head_dim // 2), dim=1
    ).flatten()
    return tensor.unflatten(0, (-1, head_dim))[:, order].flatten(0, 1).contiguous()


def interleave(tensors: dict[str, Tensor]) -> None:
    """Both models shipped have heads of one size."""
    for name in [name for name in tensors if ".q_" in name or ".k_" in name]:
        tensors[name] = neighbours(tensors[name], read_drafter_config(DRAFTER).head_dim)


def interleaved(folder: Path) -> Path:
    return altered(folder, {"rope_is_neox_style": False}, interleave, of=DRAFTER)


def nested(folder: Path) -> Path:
    """As LFM2.5's drafters come: settings inside, no tables, neighbouring pairs, the head's input
    not said."""

    def change(settings: dict[str, Any]) -> None:
        settings["dflash_config"] = {
            key: settings.pop(key)
            for key in ("target_layer_ids", "mask_token_id", "num_target_layers")
        } | {"projector_type": "dspark"}
        del settings["confidence_head_with_markov"]
        settings["architectures"] = ["Lfm2DSparkDraftModel"]

    return altered(interleaved(folder), change, without(*TABLES))


def tied(folder: Path) -> Path:
    return altered(folder, {"tie_word_embeddings": True}, without("lm_head.weight"), of=DRAFTER)


def reduced(folder: Path) -> Path:
    to_speculators(DRAFTER, folder, keep_tokens=list(range(0, 128, 2)))
    return folder


VARIANTS: dict[str, Callable[[Path], Path]] = {
    "three taps": lambda folder: fresh(folder, target_layer_ids=(0, 2, 5)),
    "six taps, one layer": lambda folder: fresh(
        folder, target_layer_ids=(0, 1, 2, 3, 4, 5), num_hidden_layers=1
    ),
    "blocks of 4": lambda folder: fresh(folder, block_size=4),
    "blocks of 9": lambda folder: fresh(folder, block_size=9),
    "blocks of 15": lambda folder: fresh(folder, block_size=15),
    "one table for both": tied,
    "neighbouring pairs": interleaved,
    "half of the vocabulary": reduced,
    "settings inside, tables left out": nested,
}
SAME = ("neighbouring pairs", "settings inside, tables left out")  # as the shipped drafter


def drafted(folder: Path) -> list[Block]:
    """Blocks of the service at three lengths, in one pass."""
    engine = draft_engine(folder, target=str(TARGET), page_size=4)
    projection = load_projection(folder)
    items = []
    for sequence, count in enumerate((3, 30, 11)):
        draws = torch.Generator().manual_seed(sequence)
        rows = projection.project(torch.randn(count, projection.feature_size, generator=draws))
        items.append(item(fill(engine, sequence, [0] * count, rows), anchor=7 + sequence))
    return engine.draft(items)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_loads_fits_its_target_and_drafts(tmp_path: Path, name: str) -> None:
    folder = VARIANTS[name](tmp_path / "drafter")
    config = read_drafter_config(folder)
    assert load_projection(folder).fingerprint == load_drafter(folder, target=TARGET).fingerprint
    said = report(str(folder), target=str(TARGET))
    assert said["target"] == "fits"
    assert said["target_layers"] == ",".join(map(str, config.target_layer_ids))
    blocks = drafted(folder)
    assert [len(block.token_ids) for block in blocks] == [config.block_size] * 3
    if name in SAME:
        for block, known in zip(blocks, drafted(DRAFTER), strict=True):
            assert block.token_ids == known.token_ids
            assert block.confidence == pytest.approx(known.confidence, abs=1e-5)


def test_what_was_resolved_is_told(tmp_path: Path) -> None:
    said = report(str(nested(tmp_path / "nested")), target=str(TARGET))
    assert said["format"] == "dflash_config"
    assert said["drafted_tokens"] == 7
    assert said["rotation"] == "neighbouring pairs, reordered when loaded, base 10000"
    assert said["tables"] == f"embed_tokens.weight and lm_head.weight from {TARGET}"
    assert said["vocabulary_map"] == "none"
    assert report(str(reduced(tmp_path / "half")))["vocabulary_map"] == "d2t, 64 of 128 tokens"
    assert report(str(tied(tmp_path / "tied")))["tables"] == "its own, one for both"


def test_a_copy_of_a_reordered_drafter_is_not_reordered_again(tmp_path: Path) -> None:
    folder = interleaved(tmp_path / "drafter")
    without_tables(folder, tmp_path / "shared", target=TARGET)
    save_drafter(load_drafter(folder), tmp_path / "saved")
    known = [block.token_ids for block in drafted(DRAFTER)]
    for name in ("shared", "saved"):
        assert [block.token_ids for block in drafted(tmp_path / name)] == known


def test_neighbouring_pairs_of_a_language_model_are_reordered_too(tmp_path: Path) -> None:
    known = load_drafter(TARGET)
    altered(tmp_path, {"rope_interleave": True}, interleave, of=TARGET)
    assert report(str(tmp_path))["rotation"].startswith("neighbouring pairs, reordered when loaded")
    found = load_drafter(tmp_path).state_dict()
    for name, tensor in known.state_dict().items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    folder = altered(tmp_path, {"tie_word_embeddings": True}, of=DRAFTER)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from"):
        load_drafter(folder)


def respelled(folder: Path, source: Path = DRAFTER) -> Path:
    """A drafter in the speculators format."""
    to_speculators(source, folder)
    return folder


@pytest.mark.parametrize("inside", [True, False])
def test_pairs_of_the_speculators_format_are_reordered_once(tmp_path: Path, inside: bool) -> None:
    def change(settings: dict[str, Any]) -> None:
        where = settings["transformer_layer_config"] if inside else settings
        where["rope_is_neox_style"] = False

    folder = altered(respelled(tmp_path / "drafter"), change, interleave)
    without_tables(folder, tmp_path / "shared", target=TARGET)
    known = load_drafter(DRAFTER).state_dict()
    for each in (folder, tmp_path / "shared"):
        for name, tensor in load_drafter(each, target=TARGET).state_dict().items():
            torch.testing.assert_close(tensor, known[name], rtol=0, atol=0, msg=name)


def test_a_tied_head_of_the_speculators_format_is_its_embedding(tmp_path: Path) -> None:
    source = altered(
        tmp_path / "source", tensors=lambda held: held["embed_tokens.weight"].add_(1), of=DRAFTER
    )
    folder = altered(
        respelled(tmp_path / "tied", source),
        {"tie_word_embeddings": True},
        without("lm_head.weight"),
    )
    assert report(str(folder), target=str(TARGET))["tables"] == "its own, one for both"
    made = load_drafter(folder, target=TARGET).state_dict()
    assert torch.equal(
        made["lm_head.weight"], load_file(source / "model.safetensors")["embed_tokens.weight"]
    )


@pytest.mark.parametrize(
    ("key", "where"),
    [
        ("logit_scale", ()),
        ("logit_scale", ("transformer_layer_config",)),
        ("partial_rotary_factor", ("transformer_layer_config",)),
        ("partial_rotary_factor", ("transformer_layer_config", "rope_parameters")),
    ],
)
def test_a_setting_that_no_tensor_shows_is_refused_by_name(
    tmp_path: Path, key: str, where: tuple[str, ...]
) -> None:
    def change(settings: dict[str, Any]) -> None:
        for name in where:
            settings = settings[name]
        settings[key] = value

    value = 1.0
    assert read_drafter_config(altered(respelled(tmp_path / "one"), change)).family == "dspark"
    value = 0.5
    with pytest.raises(UnsupportedFamily, match=rf"{key}: 0\.5 is not supported"):
        read_drafter_config(altered(respelled(tmp_path / "half"), change))
    with pytest.raises(UnsupportedFamily, match=rf"{key}: 0\.5 is not supported"):
        read_drafter_config(altered(tmp_path / "released", {key: value}, of=DRAFTER))


def test_a_map_of_the_whole_vocabulary_is_followed(tmp_path: Path) -> None:
    """Draft ids in another order than the target's, and their rows of the head."""
    order = torch.randperm(128, generator=torch.Generator().manual_seed(1))
    known = load_file(DRAFTER / "model.safetensors")
    heads = {
        name: known[name][order] for name in ("lm_head.weight", "markov_head.markov_w2.weight")
    }
    maps = {"d2t": order - torch.arange(128), "t2d": torch.ones(128, dtype=torch.bool)}
    folder = altered(
        tmp_path / "turned", tensors=lambda held: held.update(heads | maps), of=DRAFTER
    )
    assert [block.token_ids for block in drafted(folder)] == [
        block.token_ids for block in drafted(DRAFTER)
    ]
    same = {"d2t": torch.zeros(128, dtype=torch.int64)}
    twin = altered(tmp_path / "same", tensors=lambda held: held.update(same), of=DRAFTER)
    assert load_drafter(twin).draft_vocabulary is None


def test_layers_that_are_no_list_of_those_that_are_read_are_refused_by_name(tmp_path: Path) -> None:
    layers = "aux_hidden_state_layer_ids"
    fewer = altered(respelled(tmp_path / "fewer"), lambda settings: settings[layers].pop())
    for load in (load_drafter, load_projection):
        with pytest.raises(
            CheckpointError, match=r"target_layer_ids: 4 layers are named, and fc\.weight reads 5"
        ):
            load(fewer)
    turned = altered(respelled(tmp_path / "turned"), lambda settings: settings[layers].reverse())
    with pytest.raises(
        CheckpointError, match=r"aux_hidden_state_layer_ids: expected ascending .* \[5, 4"
    ):
        read_drafter_config(turned)


@pytest.mark.parametrize(
    ("inner", "slots", "anchored"),
    [
        ({}, 4, False),
        ({"projector_type": "dflash"}, 4, False),
        ({"shift_label": True}, 5, True),
        ({"projector_type": "dspark"}, 5, True),
    ],
)
def test_the_anchor_s_slot_drafts_in_newer_files_alone(
    inner: dict[str, Any], slots: int, anchored: bool
) -> None:
    raw = json.loads((DRAFTER / "config.json").read_text()) | {"block_size": 5}
    raw = {key: value for key, value in raw.items() if not key.startswith("markov")}
    raw |= {"enable_confidence_head": False, "confidence_head_with_markov": False}
    config = parse_drafter_config(raw | {"dflash_config": inner})
    assert (config.block_size, config.sample_from_anchor, config.query_size) == (slots, anchored, 5)
