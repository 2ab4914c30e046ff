"""Greedy ids of every family are those of the library's own `generate`; a family that is not served
says so by name.

All of them with `make test-long`; here the few that differ most.
"""

import json
import re
from pathlib import Path

import pytest
import torch
import transformers

from dspark.model.target import TargetTaps
from tests.architectures import matrix
from tests.architectures.families import EXPERTS, FAMILIES, SHAPE, WINDOW, Family, model_of
from verify_service import reach
from verify_service.prefix_cache import PrefixCache

FEW = ("llama4", "gpt_oss", "deepseek_v4", "qwen3_5")
# paged, and in one piece: the library has no plan for their layers, or none for so few heads
UNDIVIDED = (
    "Gemma4Text", "GptOss", "GPT2", "OPT", "HunYuanDenseV1", "Persimmon", "GPTBigCode",
)  # fmt: skip


def check(family: Family, folder: Path) -> None:
    torch.set_num_threads(1)
    row = matrix.run(family, folder)
    assert row.wrong == []
    assert row.backend == family.backend, row.why
    if row.backend == "paged":
        undivided = family.config.removesuffix("Config") in UNDIVIDED
        assert bool(row.divided) == undivided, row.divided
    assert (row.answers > 0) == (row.backend != "refused")


@pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES],
)
def test_a_family_answers_as_the_library_does(name: str, tmp_path: Path) -> None:
    check(FAMILIES[name], tmp_path)


@pytest.mark.parametrize(
    "family",
    [
        Family(
            "OPTConfig",
            "paged",
            {"ffn_dim": 96, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
        ),
        # makes the logits of all tokens, however many are asked for
        Family("TrOCRConfig", "stateful"),
        # These two answer otherwise with their caches than without.
        Family("MistralConfig", "refused", {"sliding_window": 1}),
        Family("MoshiConfig", "refused", {**WINDOW, "ffn_dim": 96}, ("intermediate_size",)),
        # views what attention gives it in another shape
        Family("AfmoeConfig", "paged", {**WINDOW, **EXPERTS}),
    ],
    ids=["narrow tables", "all logits", "window of one", "window of caches alone", "views"],
)
def test_what_the_library_itself_does_otherwise_is_served_right_or_refused(
    family: Family, tmp_path: Path
) -> None:
    check(family, tmp_path)


def test_prompts_that_are_not_found_in_the_prefix_cache_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PrefixCache, "match", lambda *_, **__: [])
    missed = [f"{matrix.FOUND}, prompt of {length}, 0 tokens found" for length in (40, 300)]
    again = [f"over 2 devices: {each}" for each in missed]
    assert matrix.run(FAMILIES["qwen3"], tmp_path).wrong == [*missed, *again]


def test_a_family_that_answers_with_near_ties_alone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "CLEAR", 1e9)
    with pytest.raises(RuntimeError, match="none of 20 prompts of 5 tokens"):
        matrix.run(FAMILIES["qwen3"], tmp_path)


@pytest.mark.parametrize("name", ["gemma3n", "deepseek_v4"])
def test_streams_of_a_token_are_tapped_as_their_mean_wherever_they_lie(name: str) -> None:
    model, ids = model_of(FAMILIES[name]), torch.arange(1, 21)
    with TargetTaps(model, (-1, 2)) as taps, torch.inference_mode():
        whole = model(input_ids=ids[None], use_cache=False) and taps.collect()
        part = model(input_ids=ids[None, :15], use_cache=False) and taps.collect()
    assert whole.shape == (1, 20, 128)
    torch.testing.assert_close(whole[:, :15], part)


def test_the_page_says_what_was_saved_and_the_saved_result_is_of_this_table() -> None:
    saved = json.loads(matrix.SAVED.read_text(encoding="utf-8"))
    assert matrix.PAGE.read_text(encoding="utf-8") == matrix.page(saved)
    rows = saved["families"]
    assert {name: row["backend"] for name, row in rows.items()} == {
        name: f.backend for name, f in FAMILIES.items()
    }
    assert [name for name, row in rows.items() if row["wrong"]] == []
    ours = re.search(
        r"^transformers==(\S+)$", (matrix.ROOT / "constraints.txt").read_text(), re.MULTILINE
    )
    assert ours is not None
    assert saved["transformers"] == ours[1]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            transformers.Llama4TextConfig(
                **SHAPE,
                attention_chunk_size=8192,
                intermediate_size_mlp=96,
                num_local_experts=2,
                no_rope_layers=[1] * 4,
            ),
            "layer 0 sees 8192 tokens, and its attention is told of everything",
        ),
        (
            transformers.Llama4TextConfig(
                **SHAPE,
                intermediate_size_mlp=96,
                num_local_experts=2,
                no_rope_layers=[0] * 4,
                attn_temperature_tuning=True,
            ),
            "its attention counts the tokens of a call, whatever positions it is told",
        ),
        (
            transformers.Exaone4Config(
                **SHAPE, sliding_window=4096, layer_types=["full_attention"] * 4
            ),
            None,
        ),
        (
            transformers.DoryConfig(
                **SHAPE, n_input_layers=1, n_recurrent_layers=2, n_output_layers=1
            ),
            "layer 1 runs more than once in a pass, and its keys have one place",
        ),
    ],
)
def test_what_a_comparison_of_short_prompts_need_not_show_is_known_all_the_same(
    config: transformers.PreTrainedConfig, reason: str | None
) -> None:
    torch.manual_seed(0)
    assert reach.unlike(transformers.AutoModelForCausalLM.from_config(config).eval()) == reason


def test_models_of_the_table_are_loud_enough_to_tell_layers_apart() -> None:
    """Leaving one layer out changes the answer, so a layer that is computed wrongly would."""
    model = model_of(FAMILIES["qwen3"])
    ids = torch.arange(1, 21).unsqueeze(0)
    whole = model(input_ids=ids).logits
    model.model.layers = model.model.layers[:-1]
    assert float((model(input_ids=ids, use_cache=False).logits - whole).abs().max()) > 1
