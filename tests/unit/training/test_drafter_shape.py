"""The shape of a fresh drafter follows its target's and the published choices."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dspark.errors import ConfigError
from dspark.model.config_file import config_to_json, parse_drafter_config
from dspark.model.pairing import text_config
from dspark.training.run import _target_head
from dspark.training.shape import drafter_config, mask_token, tap_layers
from tests.architectures.families import FAMILIES, model_of
from tests.unit.training.pipeline import short_run

SHORT = short_run(Path(), Path(), Path())
DATA = Path(__file__).parents[2] / "data"


@pytest.mark.parametrize(
    ("layers", "taps"),
    [
        (36, (1, 9, 17, 25, 33)),
        (40, (1, 10, 19, 28, 37)),
        (12, (1, 3, 5, 7, 9)),
        (6, (1, 2, 3, 4)),
        (1, (0,)),
    ],
)
def test_taps_are_the_published_ones(layers: int, taps: tuple[int, ...]) -> None:
    assert tap_layers(layers, SHORT, "block") == taps
    assert tap_layers(layers, SHORT, "mtp") == (layers - 1,)


def test_a_mask_is_a_token_that_no_text_holds(golden_target: Path) -> None:
    assert mask_token(golden_target, 128) == 127
    assert mask_token(DATA / "pair" / "target", 128) == 2  # its tokenizer names one


@pytest.mark.parametrize("family", ["dspark", "dflash", "eagle3", "mtp", "lm"])
def test_every_family_fits_the_target(family: str, golden_target: Path) -> None:
    target = text_config(golden_target)
    config = drafter_config(golden_target, target, replace(SHORT, family=family))
    assert config.family == family
    assert config.vocab_size == target.vocab_size
    assert config.hidden_size == (target.hidden_size // 2 if family == "lm" else target.hidden_size)
    assert config.num_attention_heads % config.num_key_value_heads == 0


def test_a_target_of_gemma4_has_a_drafter_like_its_global_layers() -> None:
    """Whose sizes the library tells by layer, or, in releases before, beside those of the others; a
    language model's layers are Qwen3's for it, too."""
    folder = DATA / "target_gemma4"
    released = parse_drafter_config(json.loads((DATA / "dspark_gemma4/config.json").read_text()))
    older = SimpleNamespace(**json.loads((DATA / "target_gemma4/config.json").read_text()))
    for target in (text_config(folder), older):
        config = drafter_config(folder, target, replace(SHORT, layers=2))
        for name in ("model_type", "num_key_value_heads", "head_dim", "rotary_fraction", "gemma"):
            assert getattr(config, name) == getattr(released, name)
    lm = drafter_config(folder, text_config(folder), replace(SHORT, family="lm", layers=2))
    assert parse_drafter_config(config_to_json(lm)) == lm


@pytest.fixture
def deepseek(tmp_path: Path) -> Path:
    model_of(FAMILIES["deepseek_v4"]).config.save_pretrained(tmp_path)
    return tmp_path


def test_a_target_of_deepseek_v4_has_a_module_of_its_own_kind(deepseek: Path) -> None:
    target = text_config(deepseek)
    config = drafter_config(deepseek, target, replace(SHORT, layers=0))
    assert (config.model_type, config.num_hidden_layers, config.target_layer_ids) == (
        "deepseek_v4",
        3,
        (1, 2, 3),
    )
    assert parse_drafter_config(config_to_json(config)) == replace(config, num_anchors=512)
    other = drafter_config(deepseek, target, replace(SHORT, family="dflash"))
    assert other.model_type == "qwen3"


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"head": "gated"}, "head: gated"),
        ({"markov_rank": 0}, "rank 0"),
        ({"taps": (2, 4)}, "taps"),
        ({"keep_tokens": "kept.json"}, "keep_tokens"),
    ],
)
def test_what_a_module_cannot_be_is_named(deepseek: Path, told: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        drafter_config(deepseek, text_config(deepseek), replace(SHORT, **told))


def test_a_sequential_head_of_no_rank_is_none(golden_target: Path) -> None:
    settings = replace(SHORT, markov_rank=0)
    config = drafter_config(golden_target, text_config(golden_target), settings)
    assert (config.markov_head_type, config.confidence_head_with_markov) == ("none", False)
    assert parse_drafter_config(config_to_json(config)) == config


@pytest.mark.parametrize(
    ("said", "scale"), [({}, 1.0), ({"logits_scaling": 8.0}, 0.125), ({"logit_scale": 0.5}, 0.5)]
)
def test_the_target_s_distribution_is_scaled_as_the_target_scales_it(
    said: dict[str, float], scale: float
) -> None:
    head = torch.nn.Linear(3, 5, bias=False)
    found = _target_head(target_with(head, said), UNCAPPED)
    torch.testing.assert_close(found, head.weight * scale)


def test_logits_that_are_no_product_with_the_head_are_refused() -> None:
    for head, said in (
        (torch.nn.Linear(3, 5), {}),
        (torch.nn.Linear(3, 5, bias=False), {"final_logit_softcapping": 30.0}),
    ):
        with pytest.raises(ConfigError, match=r"^target: its "):
            _target_head(target_with(head, said), UNCAPPED)


UNCAPPED: Any = SimpleNamespace(logit_softcap=None)


def target_with(head: torch.nn.Linear, said: dict[str, float]) -> Any:
    text = SimpleNamespace(**said)
    model = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: text), get_output_embeddings=lambda: head
    )
    return SimpleNamespace(model=model)
