"""Targets the packed pass is not right for."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from dspark.errors import CheckpointError
from dspark.model.checkpoint import LoadedTarget
from tests.architectures.families import FAMILIES, SHAPE, config_of, random_model
from verify_service import self_test
from verify_service.config import VerifyConfig
from verify_service.loading import choose_runner
from verify_service.model_runner import ModelRunner
from verify_service.stateful import StatefulRunner


def loud(config: Any) -> LoadedTarget:
    return LoadedTarget(random_model(config), Path("nowhere"), (), 512, 128, 64, 4)


def family(name: str) -> LoadedTarget:
    return loud(config_of(FAMILIES[name]))


def test_a_target_that_keeps_its_state_elsewhere_is_not_eligible() -> None:
    target = family("rwkv")
    cases = self_test.expected(target)
    assert self_test.disagreement(ModelRunner(target.model, None, 512), cases) is not None
    assert "where nothing can take tokens back" in (
        self_test.disagreement(StatefulRunner(target.model, None), cases) or ""
    )


def test_a_target_whose_attention_is_not_causal_is_refused_for_that() -> None:
    target = loud(transformers.Gemma3TextConfig(**SHAPE, use_bidirectional_attention=True))
    with pytest.raises(
        CheckpointError, match="depends on the tokens behind it, its attention is not causal"
    ):
        choose_runner(VerifyConfig(target="nowhere", kv_tokens=2048), target, None)
    causal = loud(transformers.Gemma3TextConfig(**SHAPE))
    assert not self_test.looks_ahead(causal, self_test.expected(causal))


def test_layers_may_differ_in_how_many_heads_share_a_key() -> None:
    """As Laguna's: the masks of a pass are made for every such number."""
    config = transformers.LagunaConfig(
        **SHAPE,
        num_attention_heads_per_layer=[4, 8, 4, 8],
        layer_types=["full_attention"] * 4,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    )
    runner = choose_runner(VerifyConfig(target="nowhere", kv_tokens=2048), loud(config), None)
    assert (runner.path, runner.reason) == ("paged", "")
