"""The shape of a fresh drafter follows its target's and the published choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from dspark.training.shape import drafter_config, mask_token, tap_layers, text_config
from tests.unit.training.pipeline import short_run


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(36, (1, 9, 17, 25, 33)), (40, (1, 10, 19, 28, 37)), (12, (1, 3, 5, 7, 9)), (6, (1, 2, 3, 4)), (1, (0,))],
)
def test_taps_are_the_published_ones(layers: int, taps: tuple[int, ...]) -> None:
    assert tap_layers(layers, short_run(Path(), Path(), Path()), "block") == taps
    assert tap_layers(layers, short_run(Path(), Path(), Path()), "mtp") == (layers - 1,)


def test_a_mask_is_a_token_that_no_text_holds(golden_target: Path) -> None:
    assert mask_token(golden_target, 128) == 127
    tiny = Path(__file__).parents[2] / "data" / "pair" / "target"
    assert mask_token(tiny, 128) == 2  # its tokenizer names one


@pytest.mark.parametrize("family", ["dspark", "dflash", "eagle3", "mtp", "lm"])
def test_every_family_fits_the_target(family: str, golden_target: Path, tmp_path: Path) -> None:
    target = text_config(golden_target)
    config = drafter_config(golden_target, target, short_run(tmp_path, golden_target, tmp_path, family=family))
    assert config.family == family
    assert config.vocab_size == target.vocab_size
    assert config.hidden_size == (target.hidden_size // 2 if family == "lm" else target.hidden_size)
    assert config.num_attention_heads % config.num_key_value_heads == 0
