"""config.json of the released drafters, every key, and of targets that such drafters could have
been made for."""

from typing import Any

from tests.released.shapes import RANK, STEPS, TargetShape


def config_of(family: str, target: TargetShape) -> dict[str, Any]:
    """config.json as released."""
    layers = 1 if family == "eagle3" else 5
    model = "Gemma4" if target.kind == "gemma4" else "Qwen3"
    said = _decoder(target, layers) | {
        "attention_dropout": 0.0,
        "layer_types": ["full_attention"] * layers,
        "num_target_layers": target.layers,
        "target_layer_ids": list(target.taps),
        "tie_word_embeddings": False,
        "transformers_version": "5.10.2",
        "use_cache": True,
    }
    if family == "eagle3":
        return said | {
            "architectures": [f"{model}Eagle3Model"],
            "ttt_length": STEPS,
            "step_loss_decay": 0.8,
            "draft_num_hidden_layers": 1,
            "target_model_name_or_path": target.name,
        }
    said |= {"architectures": [f"{model}DSparkModel"], "block_size": STEPS}
    said |= {"mask_token_id": target.mask, "num_anchors": 512}
    if family == "dflash":
        return said | {"markov_rank": 0, "enable_confidence_head": False}
    return said | {
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def _decoder(target: TargetShape, layers: int) -> dict[str, Any]:
    """What a drafter's file and its target's say alike."""
    return {
        "attention_bias": False,
        "dtype": "bfloat16",
        "hidden_size": target.hidden,
        "initializer_range": 0.02,
        "intermediate_size": target.mlp,
        "num_attention_heads": target.heads,
        "num_hidden_layers": layers,
        "rms_norm_eps": 1e-6,
        "vocab_size": target.vocab,
        **(_gemma4(target) if target.kind == "gemma4" else _qwen3(target)),
    }


def _qwen3(target: TargetShape) -> dict[str, Any]:
    return {
        "model_type": "qwen3",
        "bos_token_id": 151643 if target.vocab > 151645 else 0,
        "eos_token_id": 151645 if target.vocab > 151645 else 1,
        "head_dim": target.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 40960,
        "max_window_layers": target.layers,
        "num_key_value_heads": target.kv_heads,
        "pad_token_id": None,
        "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "sliding_window": None,
        "use_sliding_window": False,
    }


def _gemma4(target: TargetShape) -> dict[str, Any]:
    return {
        "model_type": "gemma4_text",
        "target_model_type": "gemma4_unified",
        "target_text_model_type": "gemma4_unified_text",
        "attention_k_eq_v": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "global_head_dim": target.head_dim,
        "head_dim": target.head_dim // 2,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size_per_layer_input": 0,
        "max_position_embeddings": 262144,
        "num_global_key_value_heads": target.kv_heads,
        "num_key_value_heads": target.heads // 2,
        "num_kv_shared_layers": 0,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            "rope_theta": None,
            "rope_type": "default",
        },
        "sliding_window": 1024,
        "use_bidirectional_attention": "vision",
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": target.vocab,
    }


def target_config_of(target: TargetShape) -> dict[str, Any]:
    """config.json of a decoder that such a drafter could have been made for."""
    gemma = target.kind == "gemma4"
    said = _decoder(target, target.layers) | {
        "architectures": ["Gemma4ForCausalLM" if gemma else "Qwen3ForCausalLM"],
        "tie_word_embeddings": gemma or target.name.endswith("4B"),
    }
    if gemma:  # every sixth layer sees everything
        kinds = ["sliding_attention"] * 5 + ["full_attention"]
        said["layer_types"] = (kinds * (target.layers // len(kinds) + 1))[: target.layers]
        said["use_bidirectional_attention"] = None
        said["rope_parameters"] = {
            key: value for key, value in said["rope_parameters"].items() if value
        }
        said["rope_parameters"].pop("rope_type")
        for key in ("target_model_type", "target_text_model_type"):
            said.pop(key)
    return said
