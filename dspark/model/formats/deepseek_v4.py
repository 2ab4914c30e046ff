"""The DSpark module inside a DeepSeek-V4 checkpoint: its settings and the names of its tensors.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config import DrafterConfig, StageShape
from dspark.model.config_keys import MOST_LAYERS, Keys
from dspark.rounds.plan import MAX_SLOTS

MODEL_TYPE: Literal["deepseek_v4"] = "deepseek_v4"
PREFIX = "mtp."
ENDS = {"embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight"}
_FIRST = {"fc": "main_proj", "hidden_norm": "main_norm"}  # of stage 0
_MOST_STAGES = 16
MARKOV = "markov_head.markov_w1.weight"  # of the last stage
_LAST = re.compile(rf"{re.escape(PREFIX)}(\d{{1,9}})\.{re.escape(MARKOV)}")
# Fields with the same name in the file.
_SAME = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "rms_norm_eps", "rope_theta", "max_position_embeddings", "initializer_range", "dtype",
)  # fmt: skip

# Field of `StageShape`: its key, how it is read, and its bounds.
_STAGE: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "q_lora_rank": ("q_lora_rank", Keys.count, {}),
    "o_groups": ("o_groups", Keys.count, {}),
    "o_lora_rank": ("o_lora_rank", Keys.count, {}),
    "rope_dim": ("qk_rope_head_dim", Keys.count, {}),
    "window": ("sliding_window", Keys.count, {}),
    "streams": ("hc_mult", Keys.count, {"default": 4, "most": 64}),
    "sinkhorn_iters": ("hc_sinkhorn_iters", Keys.count, {"default": 20, "most": 1000}),
    "stream_eps": ("hc_eps", Keys.positive, {"default": 1e-6}),
    "experts": ("n_routed_experts", Keys.count, {"most": 4096}),
    "experts_per_token": ("num_experts_per_tok", Keys.count, {}),
    "expert_size": ("moe_intermediate_size", Keys.count, {}),
    "expert_scale": ("routed_scaling_factor", Keys.positive, {"default": 1.5}),
    "gate_limit": ("swiglu_limit", Keys.positive, {"default": 10.0}),
}
# Values that a file may leave out but not change.
_FIXED = {
    "num_key_value_heads": 1,
    "attention_bias": False,
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "n_shared_experts": 1,
    "tie_word_embeddings": False,
}


def is_mine(raw: Mapping[str, Any]) -> bool:
    """Whether a decoded config.json is of this family. Raises UnsupportedFamily for related
    ones."""
    names = raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    words = (str(raw.get("model_type", "")), name, str(raw.get("speculators_model_type", "")))
    flat = [word.lower().replace("_", "").replace(".", "") for word in words]
    if any("deepseekv41" in word for word in flat):
        raise UnsupportedFamily(
            f"{words[0] or name}: drafters of DeepSeek-V4.1 have another architecture: not "
            "supported"
        )
    if raw.get("model_type") == MODEL_TYPE:
        return True
    if any("deepseek" in word or "dsv4" in word for word in flat) or any(
        str(k).startswith("dspark_") for k in raw
    ):
        said = next((word for word in words if word), "dspark_* keys")
        raise UnsupportedFamily(
            f"{said}: drafters of DeepSeek-V4 are read from its own checkpoint, of model_type "
            f"{MODEL_TYPE}"
        )
    return False


def parse(raw: dict[str, Any]) -> DrafterConfig:
    """Parses the module's settings, which share a file with the target's."""
    if not any(key.startswith("dspark_") for key in raw):
        raise UnsupportedFamily(
            "no dspark_* keys: this DeepSeek-V4 checkpoint holds no DSpark module to draft with"
        )
    keys = Keys(raw)
    layers = keys.count("num_hidden_layers", most=MOST_LAYERS)
    stage = StageShape(
        **{field: read(keys, key, **within) for field, (key, read, within) in _STAGE.items()}
    )
    head_dim, heads, vocab = (
        keys.count("head_dim"),
        keys.count("num_attention_heads"),
        keys.count("vocab_size"),
    )
    if stage.rope_dim > head_dim or stage.rope_dim % 2:
        raise CheckpointError(
            f"qk_rope_head_dim: {stage.rope_dim} of the {head_dim} values of a head cannot rotate "
            "in pairs"
        )
    if heads * head_dim % stage.o_groups:
        raise CheckpointError(
            f"o_groups: {stage.o_groups} groups of {heads} heads of {head_dim} values"
        )
    keys.count("num_experts_per_tok", most=stage.experts)
    for key, value in _FIXED.items():
        keys.must_equal(key, value, absent_is_fine=True)
    return DrafterConfig(
        hidden_size=keys.count("hidden_size"),
        intermediate_size=stage.expert_size,
        num_hidden_layers=_stages_of(keys, layers),
        num_attention_heads=heads,
        num_key_value_heads=1,
        head_dim=head_dim,
        vocab_size=vocab,
        rms_norm_eps=keys.positive("rms_norm_eps", default=1e-6),
        rope_theta=keys.positive("rope_theta", default=10000.0),
        max_position_embeddings=keys.count("max_position_embeddings"),
        block_size=keys.count("dspark_block_size", most=MAX_SLOTS),
        target_layer_ids=keys.layer_ids("dspark_target_layer_ids", least=0, layers=layers),
        num_target_layers=layers,
        mask_token_id=keys.count("dspark_noise_token_id", least=0, most=vocab - 1),
        model_type=MODEL_TYPE,
        markov_rank=keys.count("dspark_markov_rank"),
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        initializer_range=keys.positive("initializer_range", default=0.02),
        dtype=keys.dtype(),
        stage=stage,
    )


def to_json(config: DrafterConfig) -> dict[str, Any]:
    """The config.json of a config; `parse` gives the config back."""
    stage = {key: getattr(config.stage, field) for field, (key, _, _) in _STAGE.items()}
    return (
        {key: getattr(config, key) for key in _SAME}
        | stage
        | {
            "architectures": ["DeepseekV4ForCausalLM"],
            "model_type": MODEL_TYPE,
            "num_hidden_layers": config.num_target_layers,
            "compress_ratios": [0] * (config.num_target_layers + config.num_hidden_layers),
            "dspark_block_size": config.block_size,
            "dspark_markov_rank": config.markov_rank,
            "dspark_noise_token_id": config.mask_token_id,
            "dspark_target_layer_ids": list(config.target_layer_ids),
        }
    )


def stored_name(name: str, stages: int) -> str:
    """Name of a tensor of `StagedDrafter` -> its name in the checkpoint."""
    head, _, rest = name.partition(".")
    if name in ENDS:
        return ENDS[name]
    if head == "stages":
        return PREFIX + rest
    if head in _FIRST:
        return f"{PREFIX}0.{_FIRST[head]}.{rest}"
    return f"{PREFIX}{stages - 1}.{name}"


def stages_in(names: Iterable[str]) -> int | None:
    """Number of stages of the module with these tensor names, whose heads are in the last; None
    without heads."""
    found = [int(at[1]) for name in names if (at := _LAST.fullmatch(name))]
    if found and max(found) >= _MOST_STAGES:
        raise CheckpointError(f"{PREFIX}{max(found)}.{MARKOV}: more than {_MOST_STAGES} stages")
    return max(found) + 1 if found else None


def _stages_of(keys: Keys, layers: int) -> int:
    """Number of stages by the settings: `compress_ratios` has an entry per layer and per stage; if
    it is absent or too short, `num_nextn_predict_layers` counts them."""
    ratios = keys.raw.get("compress_ratios")
    if isinstance(ratios, list) and len(ratios) > layers:
        return min(len(ratios) - layers, _MOST_STAGES)
    return keys.count("num_nextn_predict_layers", default=3, most=_MOST_STAGES)
