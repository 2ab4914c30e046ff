"""The DSpark module inside a DeepSeek-V4 checkpoint: its settings and the names of its tensors.
Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config import DrafterConfig, StageShape
from dspark.model.config_keys import MOST_LAYERS, Keys, Table, fields_to_json, read_fields, spelled
from dspark.model.config_layers import SIZES
from dspark.rounds.plan import MAX_SLOTS

MODEL_TYPE: Literal["deepseek_v4"] = "deepseek_v4"
PREFIX = "mtp."
ENDS = {"embed_tokens.weight": "embed.weight", "lm_head.weight": "head.weight"}
_FIRST = {"fc": "main_proj", "hidden_norm": "main_norm"}  # of stage 0
_MOST_STAGES = 16
MARKOV = "markov_head.markov_w1.weight"  # of the last stage
_LAST = re.compile(rf"{re.escape(PREFIX)}(\d{{1,9}})\.{re.escape(MARKOV)}")
# Fields of `DrafterConfig`, and of `StageShape`.
_CONFIG: Table = {
    **SIZES,
    **spelled(Keys.count, "head_dim"),
    **spelled(Keys.positive, "rms_norm_eps", default=1e-6),
    **spelled(Keys.positive, "rope_theta", default=10000.0),
    **spelled(Keys.count, "num_target_layers", key="num_hidden_layers", most=MOST_LAYERS),
    **spelled(Keys.count, "block_size", key="dspark_block_size", most=MAX_SLOTS),
    **spelled(Keys.count, "mask_token_id", key="dspark_noise_token_id", least=0),
    **spelled(Keys.count, "markov_rank", key="dspark_markov_rank"),
}
_STAGE: Table = {
    **spelled(Keys.count, "q_lora_rank", "o_groups", "o_lora_rank"),
    **spelled(Keys.count, "rope_dim", key="qk_rope_head_dim"),
    **spelled(Keys.count, "window", key="sliding_window"),
    **spelled(Keys.count, "streams", key="hc_mult", default=4, most=64),
    **spelled(Keys.count, "sinkhorn_iters", key="hc_sinkhorn_iters", default=20, most=1000),
    **spelled(Keys.positive, "stream_eps", key="hc_eps", default=1e-6),
    **spelled(Keys.count, "experts", key="n_routed_experts", most=4096),
    **spelled(Keys.count, "experts_per_token", key="num_experts_per_tok"),
    **spelled(Keys.count, "expert_size", key="moe_intermediate_size"),
    **spelled(Keys.positive, "expert_scale", key="routed_scaling_factor", default=1.5),
    **spelled(Keys.positive, "gate_limit", key="swiglu_limit", default=10.0),
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
    shape, stage = read_fields(keys, _CONFIG), StageShape(**read_fields(keys, _STAGE))
    layers, heads, head_dim = (
        shape[name] for name in ("num_target_layers", "num_attention_heads", "head_dim")
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
    keys.count("dspark_noise_token_id", least=0, most=shape["vocab_size"] - 1)
    keys.may_be_absent(_FIXED)
    return DrafterConfig(
        **shape,
        intermediate_size=stage.expert_size,
        num_hidden_layers=_stages_of(keys, layers),
        num_key_value_heads=1,
        target_layer_ids=keys.layer_ids("dspark_target_layer_ids", least=0, layers=layers),
        model_type=MODEL_TYPE,
        markov_head_type="vanilla",
        enable_confidence_head=True,
        confidence_head_with_markov=True,
        stage=stage,
    )


def to_json(config: DrafterConfig) -> dict[str, Any]:
    """The config.json of a config; `parse` gives the config back."""
    return {
        **fields_to_json(config, _CONFIG),
        **fields_to_json(config.stage, _STAGE),
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": MODEL_TYPE,
        "num_key_value_heads": 1,
        "compress_ratios": [0] * (config.num_target_layers + config.num_hidden_layers),
        "dspark_target_layer_ids": list(config.target_layer_ids),
    }


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
