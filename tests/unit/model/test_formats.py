"""The speculators format says what the released one says; what neither can say here is refused by
its key."""

import json
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dspark.errors import CheckpointError
from dspark.model.checkpoint import load_drafter, load_projection, save_drafter
from dspark.model.config_file import config_to_json, parse_drafter_config, read_drafter_config
from dspark.model.family import Anchors, ContextTokens, Entries
from dspark.model.formats import nested, speculators
from dspark.model.formats.convert import to_speculators
from dspark.model.formats.vocabulary import DraftVocabulary
from tests.unit.model.golden import ALL, DATA, altered, without
from tests.unit.model.tiny import greedy

QWEN3 = [folder for folder in ALL if not folder.name.endswith("_gemma4")]
BLOCKS = [folder for folder in QWEN3 if folder.name not in ("eagle3", "dspark_rnn")]
name = attrgetter("name")
KEPT = [0, 1, 2, 5, 9, 17, 33, 64, 65, 66, 80, 99, 100, 101, 120, 127]
# As the other library writes it for `dspark_vanilla`, by its documentation and not by our
# converter.
SPELLED: dict[str, Any] = {
    "architectures": ["DSparkSpeculator"],
    "aux_hidden_state_layer_ids": [1, 2, 3, 4, 5],
    "block_size": 7,
    "confidence_head_with_markov": True,
    "draft_vocab_size": 128,
    "dtype": "float32",
    "enable_confidence_head": True,
    "markov_head_type": "vanilla",
    "markov_rank": 24,
    "mask_token_id": 127,
    "num_anchors": 8,
    "sample_from_anchor": True,
    "speculators_config": {
        "algorithm": "dspark",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
        "verifier": {"architectures": ["Qwen3ForCausalLM"], "name_or_path": "Qwen/Qwen3-4B"},
    },
    "speculators_model_type": "dspark",
    "speculators_version": "0.5.0",
    "target_hidden_size": None,
    "transformer_layer_config": {},
}
LAYER_KEYS = (
    "head_dim",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rope_parameters",
    "vocab_size",
)


def spelled() -> dict[str, Any]:
    raw = json.loads((DATA / "dspark_vanilla" / "config.json").read_text())
    layer = {key: raw[key] for key in LAYER_KEYS} | {
        "model_type": "qwen3",
        "tie_word_embeddings": True,
    }
    return SPELLED | {"mask_token_id": raw["mask_token_id"], "transformer_layer_config": layer}


@pytest.mark.parametrize("anchored", [True, False])
def test_settings_go_there_and_back(anchored: bool) -> None:
    raw = config_to_json(read_drafter_config(DATA / "dspark_vanilla"))
    raw["sample_from_anchor"] = anchored
    there = speculators.from_released(raw, family="dspark", verifier="Qwen/Qwen3-4B")
    assert there["speculators_config"]["verifier"]["name_or_path"] == "Qwen/Qwen3-4B"
    assert there["block_size"] == 7 + (not anchored), "the anchor's slot is one of the query"
    back = speculators.to_released(there)
    raw["num_target_layers"] = 0  # which the format does not state
    kept = raw.keys() & back.keys()
    assert {key: back[key] for key in kept} == {key: raw[key] for key in kept}


def test_settings_inside_are_lifted_unless_others_stand_beside_them() -> None:
    inner = {"markov_rank": 24, "num_target_layers": 6, "projector_type": "dspark"}
    lifted = nested.to_released({"dflash_config": inner, "block_size": 5})
    assert lifted == {"markov_rank": 24, "num_target_layers": 6, "block_size": 5}
    with pytest.raises(CheckpointError, match=r"^dflash_config\.markov_rank: 24, and 8 beside it"):
        nested.to_released({"dflash_config": inner, "markov_rank": 8})


@torch.no_grad()
def test_what_only_trainers_use_is_not_read(tmp_path: Path) -> None:
    to_speculators(DATA / "dspark_vanilla", tmp_path / "twin")
    more = {name: torch.ones(3) for name in ("verifier_norm.weight", "mask_embedding")}
    altered(tmp_path / "more", tensors=lambda held: held.update(more), of=tmp_path / "twin")
    ours, theirs = load_drafter(tmp_path / "more"), load_drafter(tmp_path / "twin")
    assert torch.equal(greedy(ours), greedy(theirs))


def test_a_token_that_is_named_twice_is_drafted_once() -> None:
    assert DraftVocabulary.of([5, 2, 5], 9).target_ids.tolist() == [2, 5]


@torch.no_grad()
@pytest.mark.parametrize("folder", QWEN3, ids=name)
@pytest.mark.parametrize("share_tables", [False, True])
def test_a_twin_drafts_the_same(tmp_path: Path, folder: Path, share_tables: bool) -> None:
    to_speculators(folder, tmp_path / "twin", share_tables=share_tables)
    stored = load_file(tmp_path / "twin" / "model.safetensors")
    assert ("embed_tokens.weight" in stored) is not share_tables
    twin = load_drafter(tmp_path / "twin", target=DATA / "target_qwen3")
    original = load_drafter(folder)
    ours, theirs = greedy(twin), greedy(original)
    # where weights lie in memory moves the last bit
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert torch.equal(ours[..., :128].argmax(dim=-1), theirs[..., :128].argmax(dim=-1))
    assert (
        twin.fingerprint == original.fingerprint == load_projection(tmp_path / "twin").fingerprint
    )


def test_a_file_of_the_other_library_reads_as_the_released_one() -> None:
    released = json.loads((DATA / "dspark_vanilla" / "config.json").read_text())
    mine, theirs = parse_drafter_config(released), parse_drafter_config(spelled())
    assert theirs.target_layer_ids == mine.target_layer_ids == (0, 1, 2, 3, 4)
    assert (theirs.num_target_layers, mine.num_target_layers) == (0, 6), "the other one says none"
    assert {**vars(theirs), "num_target_layers": 6} == vars(mine)


def test_what_a_nested_layer_config_leaves_out_has_the_library_s_value() -> None:
    transformers = pytest.importorskip("transformers")
    raw = spelled() | {"transformer_layer_config": {"model_type": "qwen3", "num_hidden_layers": 5}}
    read = parse_drafter_config(raw | {"draft_vocab_size": 151936})
    library = transformers.Qwen3Config()
    filled = set(LAYER_KEYS) - {"num_hidden_layers", "rope_parameters"} | {"rms_norm_eps"}
    assert {key: getattr(read, key) for key in filled} == {
        key: getattr(library, key) for key in filled
    }
    assert read.rope_theta == library.rope_parameters["rope_theta"]


@torch.no_grad()
@pytest.mark.parametrize("folder", BLOCKS, ids=name)
def test_without_sampling_from_the_anchor_its_slot_is_passed_over(
    tmp_path: Path, folder: Path
) -> None:
    to_speculators(folder, tmp_path / "late")
    path = tmp_path / "late" / "config.json"
    raw = json.loads(path.read_text())
    assert raw.pop("sample_from_anchor") is True
    raw["block_size"] = 8  # anchor and seven masks; without the key that is the older convention
    path.write_text(json.dumps(raw))
    late, original = load_drafter(tmp_path / "late"), load_drafter(folder)
    assert (late.config.block_size, late.config.query_size) == (7, 8)
    long = load_drafter(altered(tmp_path / "long", {"block_size": 8}, of=folder))
    ids, rows = torch.arange(30) % 128, torch.randn(30, 64)
    keys, values = original.ingest(ContextTokens(rows, None, torch.arange(30)))
    length = torch.tensor([30])
    at = Anchors(ids[:1], length, Entries(keys[:, None], values[:, None], length))
    hidden = late.propose(at, 7).hidden
    torch.testing.assert_close(hidden, long.propose(at, 8).hidden[:, 1:], rtol=0, atol=1e-5)
    save_drafter(late, tmp_path / "again")
    assert read_drafter_config(tmp_path / "again").query_size == 8


def test_whoever_may_read_the_settings_may_read_the_weights(tmp_path: Path) -> None:
    to_speculators(QWEN3[0], tmp_path / "converted")
    save_drafter(load_drafter(QWEN3[0]), tmp_path / "saved")
    for folder in (tmp_path / "converted", tmp_path / "saved"):
        settings, weights = (folder / file for file in ("config.json", "model.safetensors"))
        assert weights.stat().st_mode == settings.stat().st_mode


@torch.no_grad()
@pytest.mark.parametrize("folder", QWEN3, ids=name)
def test_a_cut_head_says_the_same_of_the_tokens_it_keeps_and_nothing_of_the_others(
    tmp_path: Path, folder: Path
) -> None:
    to_speculators(folder, tmp_path / "cut", keep_tokens=KEPT)
    cut, whole = load_drafter(tmp_path / "cut"), load_drafter(folder)
    assert cut.config.head_size == len(KEPT) == cut.lm_head.out_features
    few = greedy(cut)[:, 0, :128]
    full = greedy(whole)[:, 0, :128]  # later slots follow other tokens
    torch.testing.assert_close(few[:, KEPT], full[:, KEPT], rtol=0, atol=1e-5)
    rest = sorted(set(range(128)) - set(KEPT))
    assert torch.isneginf(few[:, rest]).all()
    save_drafter(cut, tmp_path / "again")
    torch.testing.assert_close(
        greedy(load_drafter(tmp_path / "again")), greedy(cut), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"speculators_model_type": "peagle"}, "speculators_model_type: 'peagle'"),
        ({"speculators_model_type": "mtp"}, "speculators_model_type: 'mtp'"),
        ({"speculators_model_type": "dflash", "projector_type": "domino"}, "domino"),
        (
            {"transformer_layer_config": {"model_type": "llama"}},
            r'transformer_layer_config\.model_type: "llama"',
        ),
        ({"transformer_layer_config": []}, "transformer_layer_config: expected an object"),
        ({"target_hidden_size": 80}, "target_hidden_size: 80"),
        ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids: missing"),
        (
            {"aux_hidden_state_layer_ids": [1, "2"]},
            "aux_hidden_state_layer_ids: expected ascending",
        ),
        ({"aux_hidden_state_layer_ids": [3, 2]}, "aux_hidden_state_layer_ids: expected ascending"),
        ({"block_size": 1, "sample_from_anchor": False}, "block_size: .*found 1"),
        ({"sample_from_anchor": 1}, "sample_from_anchor: expected true or false"),
        ({"draft_vocab_size": 129}, "draft_vocab_size: .*found 129"),
        ({"mask_token_id": None}, "mask_token_id: missing"),
        (
            {"speculators_model_type": "eagle3", "norm_before_residual": True},
            "norm_before_residual",
        ),
        (
            {"speculators_model_type": "eagle3", "speculators_config": {}},
            r"speculators_config\.proposal_methods",
        ),
        ({"speculators_model_type": "dsv4_dspark"}, "DeepSeek-V4"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_refused_by_its_key(change: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        parse_drafter_config(spelled() | change)


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda maps: maps["d2t"][3].add_(1), "t2d: does not mark"),
        (lambda maps: maps["d2t"][-1].add_(1), "d2t: an id falls outside the vocabulary of 128"),
        (lambda maps: maps.update(d2t=maps["d2t"].float()), "d2t: expected 16 integers"),
        (lambda maps: maps["t2d"].fill_(False), "t2d: does not mark"),
        (without("d2t"), "missing: d2t"),
        (lambda maps: maps["d2t"][1].sub_(1), "d2t: two draft ids mean the same token"),
    ],
)
def test_maps_that_contradict_are_refused(tmp_path: Path, spoil: Any, named: str) -> None:
    to_speculators(DATA / "dspark_vanilla", tmp_path / "cut", keep_tokens=KEPT)
    with pytest.raises(CheckpointError, match=named):
        load_drafter(altered(tmp_path / "cut", tensors=spoil))
