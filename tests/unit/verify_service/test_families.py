"""Targets the packed pass is right for: grouped heads, windows, caps, sinks, unequal head sizes;
and one it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from dspark.errors import CheckpointError
from dspark.model.checkpoint import LoadedTarget
from verify_service import self_test
from verify_service.config import VerifyConfig
from verify_service.loading import choose_runner
from verify_service.model_runner import ModelRunner
from verify_service.stateful import StatefulRunner

SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
MIXTURE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SHAPE),
    "mistral, every layer with a window": lambda: transformers.MistralConfig(
        **SHAPE, sliding_window=16
    ),
    "gemma2, capped scores and some windows": lambda: transformers.Gemma2Config(
        **SHAPE,
        head_dim=16,
        sliding_window=16,
        query_pre_attn_scalar=16,
        attn_logit_softcapping=5.0,
    ),
    "gpt-oss, sinks, experts and some windows": lambda: transformers.GptOssConfig(
        **SHAPE, head_dim=16, sliding_window=16, num_local_experts=4, num_experts_per_tok=2
    ),
    "gemma4, two head sizes and values that are keys": lambda: transformers.Gemma4TextConfig(
        **SHAPE,
        head_dim=16,
        global_head_dim=32,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"] * 2,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
    ),
    "deepseek-v2, values smaller than keys": lambda: transformers.DeepseekV2Config(
        **{**SHAPE, "num_key_value_heads": 4},
        **MIXTURE,
        kv_lora_rank=16,
        q_lora_rank=None,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        n_shared_experts=1,
        first_k_dense_replace=1,
        topk_method="greedy",
    ),
}


def loud(config: Any) -> LoadedTarget:
    """A random target whose layers all matter: fresh weights would hardly show a mistake in
    attention."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.15)
    return LoadedTarget(model, Path("nowhere"), (), 512, 128, 64, 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_packed_pass_is_right_for(family: str) -> None:
    target = loud(FAMILIES[family]())
    cases = self_test.expected(target)
    assert self_test.disagreement(ModelRunner(target.model, None, 512), cases) is None
    assert self_test.disagreement(StatefulRunner(target.model, None), cases) is None


def test_a_target_that_keeps_its_state_elsewhere_is_not_eligible() -> None:
    target = loud(
        transformers.RwkvConfig(
            vocab_size=128, hidden_size=64, attention_hidden_size=64, num_hidden_layers=2
        )
    )
    cases = self_test.expected(target)
    assert self_test.disagreement(ModelRunner(target.model, None, 512), cases) is not None
    assert "where nothing can take tokens back" in (
        self_test.disagreement(StatefulRunner(target.model, None), cases) or ""
    )


def test_a_target_whose_attention_is_not_causal_is_refused_for_that() -> None:
    target = loud(
        transformers.Gemma3TextConfig(**SHAPE, head_dim=16, use_bidirectional_attention=True)
    )
    with pytest.raises(
        CheckpointError, match="depends on the tokens behind it, its attention is not causal"
    ):
        choose_runner(VerifyConfig(target="nowhere", kv_tokens=2048), target, None)
    causal = loud(transformers.Gemma3TextConfig(**SHAPE, head_dim=16))
    assert not self_test.looks_ahead(causal, self_test.expected(causal))
