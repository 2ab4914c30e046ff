"""The DSpark module of a DeepSeek-V4 checkpoint: blocks, values of quantised tensors, and what is
refused by name.

A small quantised module ships with the tests; the target and the other cases are read where they
are present.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.checkpoint import (
    fingerprint,
    load_drafter,
    load_projection,
    load_target,
    save_drafter,
)
from dspark.model.config_file import config_to_json, parse_drafter_config
from dspark.model.family import Anchors, ContextTokens, Entries
from dspark.model.formats.deepseek_v4 import stages_in
from dspark.model.formats.report import report
from dspark.model.staged import StagedDrafter
from dspark.model.target import TargetTaps
from dspark.model.weights_file import values
from dspark.training.rounds import anchors_at
from tests.operations import WAITS, Watched
from tests.unit.model.golden import DATA, altered, block_cases, without
from tests.unit.model.tiny import stepped

SHIPPED = DATA / "dspark_deepseek_v4"
WHOLE = Path(__file__).parents[4] / "shared" / "golden-deepseek-v4" / "dspark_deepseek_v4"
FOLDERS = [SHIPPED, *(folder for folder in (WHOLE, WHOLE / "quantized") if folder.is_dir())]
CLOSE = {"atol": 1e-4, "rtol": 0}
CLOSE_STREAMS = {"atol": 5e-4, "rtol": 0}  # their values reach tens
needs_target = pytest.mark.skipif(
    not WHOLE.is_dir(), reason="the target's reference data is not here"
)


def staged(folder: Path) -> StagedDrafter:
    drafter = load_drafter(folder)
    assert isinstance(drafter, StagedDrafter)
    drafter.serve()
    return drafter


@pytest.mark.parametrize(
    "folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}/{folder.name}"
)
@torch.inference_mode()
def test_every_block_is_the_references(folder: Path) -> None:
    drafter, projection = staged(folder), load_projection(folder)
    assert projection.fingerprint == drafter.fingerprint
    for case in block_cases(folder):
        rows = projection.project(case["context_features"])
        torch.testing.assert_close(rows, case["context_rows"], **CLOSE)
        count = rows.shape[1]
        order = torch.randperm(count)  # rows may arrive in any order
        keys = torch.empty(3, 1, count, 1, 32)
        made = drafter.ingest(ContextTokens(rows[:, order], None, order))[0]
        keys[:, :, order] = made
        kept = case["context_keys"]
        torch.testing.assert_close(keys[:, 0, -kept.shape[1] :, 0], kept, **CLOSE)
        length = torch.tensor([count])
        at = Anchors(case["anchor_id"], length, Entries(keys, keys, length))
        hidden = drafter.propose(at, 5).hidden
        torch.testing.assert_close(hidden, case["head_hidden"], **CLOSE_STREAMS)
        torch.testing.assert_close(drafter.norm(hidden), case["block_hidden"], **CLOSE)
        torch.testing.assert_close(drafter.base_logits(hidden), case["base_logits"], **CLOSE)
        for name, forced in (("", None), ("forced_", case["forced_previous_ids"])):
            proposal = drafter.propose(at, 5)
            previous, logits = stepped(proposal, case["anchor_id"], 5, forced)
            torch.testing.assert_close(logits, case[f"{name}corrected_logits"], **CLOSE)
            torch.testing.assert_close(
                proposal.confidence_logits(previous), case[f"{name}confidence_logits"], **CLOSE
            )
            if forced is None:
                assert torch.equal(logits.argmax(-1), case["draft_token_ids"])


@needs_target
def test_quantised_tensors_are_read_as_their_values() -> None:
    drafter = staged(WHOLE / "quantized")
    inner = {outer: name for name, outer in drafter.stored_names().items()}
    state, wanted = drafter.state_dict(), load_file(WHOLE / "quantized" / "dequantized.safetensors")
    assert len(wanted) == 97
    for outer, tensor in wanted.items():
        assert torch.equal(state[inner[outer]], tensor.float()), outer


def test_four_bits_and_blocks_at_an_edge() -> None:
    codes = torch.tensor(
        [[0x10, 0x32, 0x54, 0x76] * 4, [0x98, 0xBA, 0xDC, 0xFE] * 4], dtype=torch.uint8
    )
    scale = torch.tensor([[2.0], [0.5]]).to(torch.float8_e8m0fnu)
    ladder = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    wanted = torch.stack((2 * ladder.repeat(4), -0.5 * ladder.repeat(4)))
    assert torch.equal(values(codes.view(torch.int8), scale).float(), wanted)
    stored = torch.ones(130, 200).to(torch.float8_e4m3fn)
    grid = values(stored, torch.tensor([[1.0, 2.0], [4.0, 8.0]])).float()
    assert [float(grid[at]) for at in ((127, 127), (127, 128), (128, 127), (129, 199))] == [
        1.0,
        2.0,
        4.0,
        8.0,
    ]


def test_an_unquantised_copy_drafts_the_same_and_keeps_its_settings(tmp_path: Path) -> None:
    before = load_drafter(SHIPPED)
    save_drafter(before, tmp_path / "plain", dtype=torch.float32)
    after = load_drafter(tmp_path / "plain")
    assert {name: tensor.tolist() for name, tensor in before.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in after.state_dict().items()
    }
    assert parse_drafter_config(config_to_json(after.config)) == after.config
    said = report(str(tmp_path / "plain"))
    assert (said["format"], said["family"], said["layers"]) == (
        "deepseek_v4",
        "dspark",
        "3 x deepseek_v4",
    )
    assert fingerprint(SHIPPED) != fingerprint(tmp_path / "plain")


def test_what_is_mixed_in_fp32_stays_so_beside_bf16() -> None:
    drafter = load_drafter(SHIPPED, dtype=torch.bfloat16)
    wide = {name for name, tensor in drafter.state_dict().items() if tensor.dtype == torch.float32}
    assert {"stages.0.hc_attn_fn", "stages.1.attn.attn_sink", "stages.2.ffn.gate.bias"} <= wide
    assert drafter.dtype == torch.bfloat16
    with torch.inference_mode():
        case = block_cases(SHIPPED)[-1]
        ids = torch.cat((case["prompt_ids"][0], case["anchor_id"]))
        at = torch.tensor([len(ids) - 1])
        made = drafter.propose(anchors_at(drafter, case["context_features"][0], ids, at), 5)
        assert (
            float((drafter.base_logits(made.hidden).float() - case["base_logits"]).abs().max())
            < 0.5
        )


@torch.no_grad()  # in which operations are told in their smallest parts
def test_a_block_waits_for_the_device_once_for_each_mixture_alone() -> None:
    drafter = staged(SHIPPED)
    keys = torch.randn(3, 2, 40, 1, 32, generator=torch.Generator().manual_seed(1))
    asked, lengths = torch.tensor([3, 4]), torch.tensor([40, 9])

    def block(at: slice, count: int) -> Tensor:
        own = keys[:, at, :count]
        context = Entries(own, own, lengths[at])
        return drafter.propose(Anchors(asked[at], lengths[at], context), 5).hidden

    seen: list[str] = []
    with Watched(lambda name, *_: seen.append(name)):
        both = block(slice(2), 40)
    assert not WAITS & set(seen), "the counts of a mixture come by a way that is not told here"
    for at, count in enumerate(lengths.tolist()):
        torch.testing.assert_close(both[at], block(slice(at, at + 1), count)[0], **CLOSE_STREAMS)


SCALE, EXPERT = "mtp.1.attn.wkv.scale", "mtp.1.ffn.experts.3.w2"


def _without_last(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("mtp.2.")]:
        del tensors[name]


def _classic(tensors: dict[str, Tensor]) -> None:
    _without_last(tensors)
    tensors["mtp.0.enorm.weight"] = torch.ones(64)


def _next(tensors: dict[str, Tensor]) -> None:
    tensors["mtp.2.markov_head.embed.weight"] = tensors.pop("mtp.2.markov_head.markov_w1.weight")


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (_classic, UnsupportedFamily, "classic multi-token-prediction module"),
        (_next, UnsupportedFamily, r"DeepSeek-V4\.1"),
        (_without_last, CheckpointError, r"no mtp\.2\.markov_head.*\[0, 1\]"),
        (
            lambda held: held.update({SCALE: held[SCALE][:0]}),
            CheckpointError,
            r"mtp\.1\.attn\.wkv\.weight: scales \[0, 1\] instead of \[1, 1\]",
        ),
        (
            lambda held: held.update({SCALE: held[SCALE].view(torch.uint8)}),
            CheckpointError,
            r"mtp\.1\.attn\.wkv\.weight: scales are U8, none of F8_E8M0",
        ),
        (
            without(f"{EXPERT}.weight", f"{EXPERT}.scale"),
            CheckpointError,
            rf"missing: {EXPERT}\.weight",
        ),
    ],
)
def test_other_modules_under_the_same_prefix_are_told_by_their_tensors(
    tmp_path: Path, change: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        load_drafter(altered(tmp_path, tensors=change, of=SHIPPED))


@pytest.mark.parametrize("ratios", [None, [0] * 7, [0] * 20])
def test_stages_are_those_whose_tensors_are_there_whatever_the_settings_say(
    tmp_path: Path, ratios: list[int] | None
) -> None:
    altered(tmp_path, {"num_nextn_predict_layers": 1, "compress_ratios": ratios}, of=SHIPPED)
    found, known = load_drafter(tmp_path), load_drafter(SHIPPED)
    assert found.config == known.config
    assert found.state_dict().keys() == known.state_dict().keys()
    assert load_projection(tmp_path).fingerprint == known.fingerprint


def test_a_module_of_too_many_stages_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match=r"mtp\.16\.markov_head\.markov_w1\.weight: more than 16 stages"
    ):
        stages_in(["mtp.16.markov_head.markov_w1.weight"])


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"model_type": "deepseek_v41"}, UnsupportedFamily, r"DeepSeek-V4\.1"),
        ({"architectures": ["DeepseekV41ForCausalLM"]}, UnsupportedFamily, r"DeepSeek-V4\.1"),
        ({"dspark_target_layer_ids": [3, 4, 6]}, CheckpointError, "dspark_target_layer_ids"),
        ({"dspark_block_size": 65}, CheckpointError, "dspark_block_size: .*from 1 to 64"),
        ({"dspark_noise_token_id": 128}, CheckpointError, "dspark_noise_token_id"),
        ({"o_groups": 3}, CheckpointError, "o_groups"),
        ({"qk_rope_head_dim": 15}, CheckpointError, "qk_rope_head_dim"),
        ({"num_key_value_heads": 2}, CheckpointError, "num_key_value_heads"),
        ({"num_experts_per_tok": 9}, CheckpointError, "num_experts_per_tok"),
        ({"scoring_func": "softmax"}, CheckpointError, "scoring_func"),
        ({"hc_eps": 0}, CheckpointError, "hc_eps"),
        ({"n_routed_experts": 1 << 24}, CheckpointError, "n_routed_experts: .*from 1 to 4096"),
    ],
)
def test_settings_of_another_kind_are_named(
    change: dict[str, Any], error: type[Exception], named: str
) -> None:
    raw = json.loads((SHIPPED / "config.json").read_text())
    with pytest.raises(error, match=named):
        parse_drafter_config(raw | change)


@needs_target
def test_the_target_is_tapped_as_the_mean_of_its_streams() -> None:
    target = load_target(WHOLE)
    held = load_file(WHOLE / "decode_taps.safetensors")
    names = sorted({name.rpartition(".")[0] for name in held})
    assert names
    for name in names:
        with TargetTaps(target.model, (3, 4, 5)) as taps, torch.inference_mode():
            target.model(input_ids=held[f"{name}.input_ids"], use_cache=False)
            torch.testing.assert_close(taps.collect(), held[f"{name}.taps"], **CLOSE)
