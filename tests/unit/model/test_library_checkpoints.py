"""What the library itself loads without complaint is read, as a target and as a drafter, with its
numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from dspark.errors import CheckpointError
from dspark.model.checkpoint import load_drafter, load_target
from dspark.model.formats.convert import to_speculators
from dspark.model.language import LanguageDrafter
from dspark.model.pairing import sizes_of
from tests.architectures.families import SHAPE, random_model
from tests.unit.model.golden import DATA, altered, put, without

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = dict[str, torch.Tensor]
IDS = torch.arange(3, 20)[None]


def made(folder: Path, change: Callable[[Tensors], Any], config: Any) -> Path:
    """A random model of the library, its tensors changed."""
    random_model(config).save_pretrained(folder)
    return altered(folder, tensors=change)


def qwen3(*, tied: bool) -> Any:
    return transformers.Qwen3Config(**SHAPE | {"tie_word_embeddings": tied})


def _without_prefix(tensors: Tensors) -> None:
    for name in tuple(tensors):
        tensors[name.removeprefix("model.")] = tensors.pop(name)


def _inside(tensors: Tensors) -> None:
    for name in tuple(tensors):
        tensors[f"model.{name}"] = tensors.pop(name)


EVERY_LAYER = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in (0, 1)]
CASES: dict[str, tuple[Callable[[Tensors], Any], bool]] = {
    "a tied head stored too": (lambda held: held.update({HEAD: held[EMBEDDING].clone()}), True),
    "a tied head stored alone": (lambda held: held.update({HEAD: held.pop(EMBEDDING)}), True),
    "frequencies of every layer": (
        lambda held: held.update({name: torch.ones(8) for name in EVERY_LAYER}),
        True,
    ),
    "frequencies of the model": (put("model.rotary_emb.inv_freq", torch.ones(8)), False),
    "no prefix": (_without_prefix, True),
    "no prefix beside a head": (_without_prefix, False),
    "inside another module": (_inside, True),
    "numbers of eight bytes": (
        lambda held: held.update({name: tensor.double() for name, tensor in held.items()}),
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_model_that_the_library_loads_is_read_with_its_numbers(case: str, tmp_path: Path) -> None:
    change, tied = CASES[case]
    folder = made(tmp_path / "model", change, qwen3(tied=tied))
    library, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), "the library would complain, so there is nothing to be like"
    wanted = library(input_ids=IDS, use_cache=False).logits
    target, drafter = load_target(folder), load_drafter(folder)
    assert isinstance(drafter, LanguageDrafter)
    torch.testing.assert_close(target.model(input_ids=IDS, use_cache=False).logits, wanted)
    with torch.inference_mode():
        torch.testing.assert_close(
            drafter.base_logits(drafter.forward_tokens(IDS)), wanted, rtol=1e-4, atol=1e-5
        )


def test_a_stored_head_that_differs_from_its_tied_table_is_no_drafter_s(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors[HEAD] = tensors[EMBEDDING].clone()
        tensors[HEAD][7, 3] += 1.0

    folder = made(tmp_path / "model", change, qwen3(tied=True))
    with pytest.raises(
        CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"
    ):
        load_drafter(folder)


@pytest.mark.parametrize("name", ["score.weight", "model.layers.0.self_attn.bias"])
def test_what_the_library_complains_of_is_refused_by_name(name: str, tmp_path: Path) -> None:
    folder = made(tmp_path / "model", put(name, torch.ones(1, 64)), qwen3(tied=True))
    for load in (load_target, load_drafter):
        with pytest.raises(CheckpointError, match=f"unexpected.*{name}"):
            load(folder)


def test_a_head_that_nothing_replaces_is_missing(tmp_path: Path) -> None:
    folder = made(tmp_path / "model", without(HEAD), qwen3(tied=False))
    for load in (load_target, load_drafter):
        with pytest.raises(CheckpointError, match=f"missing.*{HEAD}"):
            load(folder)


def test_buffers_that_the_library_leaves_alone_may_hold_anything(tmp_path: Path) -> None:
    """An old GPT-NeoX: a causal mask, what stands in its empty places, frequencies, and a head
    under an older name."""

    def change(tensors: Tensors) -> None:
        attention = "gpt_neox.layers.0.attention"
        tensors[f"{attention}.masked_bias"] = torch.tensor(-torch.inf)
        tensors[f"{attention}.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.bool)
        tensors[f"{attention}.rotary_emb.inv_freq"] = torch.full((8,), torch.nan)

    folder = made(tmp_path / "model", change, transformers.GPTNeoXConfig(**SHAPE))
    assert load_target(folder).num_layers == 4


def test_frequencies_beside_a_released_drafter_are_left_alone(tmp_path: Path) -> None:
    more = {
        "rotary_emb.inv_freq": torch.ones(8),
        "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
    }
    folder = altered(
        tmp_path / "drafter", tensors=lambda held: held.update(more), of=DATA / "dspark_vanilla"
    )
    assert load_drafter(folder).fingerprint == load_drafter(DATA / "dspark_vanilla").fingerprint


@pytest.mark.parametrize("kept", ["model.embed_tokens.weight", "lm_head.weight"])
def test_shared_tables_are_read_from_a_target_that_stores_one_under_either_name(
    kept: str, tmp_path: Path
) -> None:
    table = load_file(DATA / "dspark_vanilla" / "model.safetensors")["embed_tokens.weight"]

    def one(tensors: Tensors) -> None:
        for name in [
            name for name in tensors if name.endswith(("embed_tokens.weight", "lm_head.weight"))
        ]:
            del tensors[name]
        tensors[kept] = table

    target = altered(tmp_path / "target", tensors=one, of=DATA / "target_qwen3")
    same = {"lm_head.weight": table.clone()}
    drafter = altered(
        tmp_path / "drafter", tensors=lambda held: held.update(same), of=DATA / "dspark_vanilla"
    )
    to_speculators(drafter, tmp_path / "shared", verifier=None, share_tables=True)
    loaded = load_drafter(tmp_path / "shared", target=target)
    torch.testing.assert_close(loaded.embed_tokens.weight, table.float())
    torch.testing.assert_close(loaded.lm_head.weight, table.float())


def test_sizes_that_a_target_s_file_leaves_out_or_calls_otherwise_are_the_library_s(
    tmp_path: Path,
) -> None:
    shape = {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}
    transformers.GPT2Config(**shape).save_pretrained(tmp_path / "other names")
    assert sizes_of(tmp_path / "other names") == {"hidden_size": 64, "vocab_size": 128, "layers": 2}
    bare = {"model_type": "gemma3", "text_config": {"hidden_size": 64, "num_hidden_layers": 2}}
    (tmp_path / "config.json").write_text(json.dumps(bare))
    text = transformers.Gemma3TextConfig()
    assert sizes_of(tmp_path) == {"hidden_size": 64, "vocab_size": text.vocab_size, "layers": 2}
    strange = {"hidden_size": {"model_type": "qwen3", "hidden_size": "x"}}
    strange["vocab_size: missing"] = {"model_type": "vit"}
    strange["num_hidden_layers: .* to 1024, found"] = bare | {
        "text_config": {"num_hidden_layers": 1 << 24}
    }
    for named, config in strange.items():
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(CheckpointError, match=named):
            sizes_of(tmp_path)
