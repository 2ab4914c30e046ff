"""Exact shapes of the released drafters: every key of config.json, every tensor's name and size, by name of checkpoint.

Spelled from the published files and not from this project's modules, so that what is written by it proves that they
load. A thin shape keeps depth, hidden size and taps, and narrows MLP, heads and vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dspark.errors import ConfigError

Shapes = dict[str, tuple[int, ...]]
FAMILIES = {"dspark": "block7", "dflash": "block7", "eagle3": "ttt7"}
_RANK = 256
_STEPS = 7  # tokens of a block, and steps of a chain


@dataclass(frozen=True)
class TargetShape:
    """A target as its drafters see it."""

    kind: str  # qwen3 or gemma4
    name: str
    layers: int
    taps: tuple[int, ...]
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mask: int

    @property
    def thin(self) -> TargetShape:
        gemma = self.kind == "gemma4"
        vocab = 512
        return replace(
            self,
            mlp=128,
            heads=4,
            kv_heads=1 if gemma else 2,
            head_dim=32 if gemma else 16,
            vocab=vocab,
            mask=min(self.mask, vocab - 1),
        )


TARGETS = {
    "qwen3_4b": TargetShape("qwen3", "Qwen/Qwen3-4B", 36, (1, 9, 17, 25, 33), 2560, 9728, 32, 8, 128, 151936, 151669),
    "qwen3_8b": TargetShape("qwen3", "Qwen/Qwen3-8B", 36, (1, 9, 17, 25, 33), 4096, 12288, 32, 8, 128, 151936, 151669),
    "qwen3_14b": TargetShape(
        "qwen3", "Qwen/Qwen3-14B", 40, (1, 10, 19, 28, 37), 5120, 17408, 40, 8, 128, 151936, 151669
    ),
    "gemma4_12b": TargetShape(
        "gemma4", "google/gemma-4-12b-it", 48, (5, 17, 29, 41, 46), 3840, 15360, 16, 1, 512, 262144, 4
    ),
}
NAMES = tuple(f"{family}_{target}_{ending}" for family, ending in FAMILIES.items() for target in TARGETS)


def shape_of(name: str, *, thin: bool = False) -> tuple[str, TargetShape]:
    """(family, target) of a released checkpoint."""
    family, _, rest = name.partition("_")
    target = TARGETS.get(rest.rpartition("_")[0])
    if name not in NAMES or target is None:
        raise ConfigError(f"{name}: no released drafter; known: {', '.join(NAMES)}")
    return family, target.thin if thin else target


def config_of(family: str, target: TargetShape) -> dict[str, Any]:
    """config.json as released."""
    layers = 1 if family == "eagle3" else 5
    gemma = target.kind == "gemma4"
    said: dict[str, Any] = {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "hidden_size": target.hidden,
        "initializer_range": 0.02,
        "intermediate_size": target.mlp,
        "layer_types": ["full_attention"] * layers,
        "num_attention_heads": target.heads,
        "num_hidden_layers": layers,
        "num_target_layers": target.layers,
        "rms_norm_eps": 1e-6,
        "target_layer_ids": list(target.taps),
        "tie_word_embeddings": False,
        "transformers_version": "5.10.2",
        "use_cache": True,
        "vocab_size": target.vocab,
        **(_gemma4(target) if gemma else _qwen3(target)),
    }
    if family == "eagle3":
        said |= {"architectures": [("Gemma4" if gemma else "Qwen3") + "Eagle3Model"], "ttt_length": _STEPS}
        return said | {
            "step_loss_decay": 0.8,
            "draft_num_hidden_layers": 1,
            "target_model_name_or_path": target.name,
        }
    said |= {"architectures": [("Gemma4" if gemma else "Qwen3") + "DSparkModel"], "block_size": _STEPS}
    said |= {"mask_token_id": target.mask, "num_anchors": 512}
    if family == "dflash":
        return said | {"markov_rank": 0, "enable_confidence_head": False}
    return said | {
        "markov_rank": _RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def tensors_of(family: str, target: TargetShape) -> Shapes:
    """Name -> shape of every tensor of the file."""
    d, v, gemma = target.hidden, target.vocab, target.kind == "gemma4"
    found: Shapes = {
        "embed_tokens.weight": (v, d),
        "lm_head.weight": (v, d),
        "fc.weight": (d, 5 * d),
        "norm.weight": (d,),
    }
    if family == "eagle3":
        found["layers.0.hidden_norm.weight"] = (d,)
    else:
        found["hidden_norm.weight"] = (d,)
    for layer in range(1 if family == "eagle3" else 5):
        found |= {f"layers.{layer}.{name}": shape for name, shape in _layer(family, target, gemma).items()}
    if family == "dspark":
        found |= {
            "markov_head.markov_w1.weight": (v, _RANK),
            "markov_head.markov_w2.weight": (v, _RANK),
            "confidence_head.proj.weight": (1, d + _RANK),
            "confidence_head.proj.bias": (1,),
        }
    return found


def _layer(family: str, target: TargetShape, gemma: bool) -> Shapes:
    d, width, kv = target.hidden, target.heads * target.head_dim, target.kv_heads * target.head_dim
    reads = 2 * d if family == "eagle3" else d
    found: Shapes = {
        "self_attn.q_proj.weight": (width, reads),
        "self_attn.k_proj.weight": (kv, reads),
        "self_attn.o_proj.weight": (d, width),
        "self_attn.q_norm.weight": (target.head_dim,),
        "self_attn.k_norm.weight": (target.head_dim,),
        "mlp.gate_proj.weight": (target.mlp, d),
        "mlp.up_proj.weight": (target.mlp, d),
        "mlp.down_proj.weight": (d, target.mlp),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
    }
    if gemma:  # values come from the keys' projection; norms stand on both sides
        return found | {
            "pre_feedforward_layernorm.weight": (d,),
            "post_feedforward_layernorm.weight": (d,),
            "layer_scalar": (1,),
        }
    return found | {"self_attn.v_proj.weight": (kv, reads)}


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
            "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
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
    said = (_gemma4(target) if gemma else _qwen3(target)) | {
        "architectures": ["Gemma4ForCausalLM" if gemma else "Qwen3ForCausalLM"],
        "attention_bias": False,
        "dtype": "bfloat16",
        "hidden_size": target.hidden,
        "initializer_range": 0.02,
        "intermediate_size": target.mlp,
        "num_attention_heads": target.heads,
        "num_hidden_layers": target.layers,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": gemma or target.name.endswith("4B"),
        "vocab_size": target.vocab,
    }
    if gemma:  # every sixth layer sees everything
        kinds = ["sliding_attention"] * 5 + ["full_attention"]
        said["layer_types"] = (kinds * (target.layers // len(kinds) + 1))[: target.layers]
        said["use_bidirectional_attention"] = None
        said["rope_parameters"] = {key: value for key, value in said["rope_parameters"].items() if value}
        said["rope_parameters"].pop("rope_type")
        for key in ("target_model_type", "target_text_model_type"):
            said.pop(key)
    return said
