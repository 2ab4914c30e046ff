"""The part of a config.json that describes the layers of a drafter: Qwen3's or Gemma4's.

Both give the same keyword arguments of `DrafterConfig`. A Gemma4 drafter always has the target's
*global* layer shape.
"""

from __future__ import annotations

import math
from typing import Any

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config import Yarn
from dspark.model.config_keys import MOST_LAYERS, Keys, positive, show

# Values of settings where pairs are neighbours; without any, pairs lie half a head apart.
NEIGHBOURS = {
    "rope_is_neox_style": False,
    "is_neox_style": False,
    "rope_interleave": True,
    "rope_interleaved": True,
}

# Fields with the same name in the file, whatever the layers.
_SAME = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "initializer_range",
    "dtype",
)


def layer_shape(keys: Keys) -> dict[str, Any]:
    """The `DrafterConfig` fields of layers, norms and positions."""
    layers = keys.count("num_hidden_layers", most=MOST_LAYERS)
    types = keys.raw.get("layer_types")
    if types is not None and types != ["full_attention"] * layers:
        raise CheckpointError(
            f"layer_types: expected {layers} times full_attention, found {show(types)}"
        )
    keys.must_equal("attention_bias", False, absent_is_fine=True)
    own = _gemma4(keys) if keys.raw.get("model_type") == "gemma4_text" else _qwen3(keys)
    if own["num_attention_heads"] % own["num_key_value_heads"]:
        raise CheckpointError(
            f"num_attention_heads: {own['num_attention_heads']} is not a multiple of the "
            f"{own['num_key_value_heads']} key-value heads"
        )
    if own["head_dim"] % 2:
        raise CheckpointError(f"head_dim: {own['head_dim']} is odd, rotary positions need pairs")
    return own | {
        "hidden_size": keys.count("hidden_size"),
        "intermediate_size": keys.count("intermediate_size"),
        "num_hidden_layers": layers,
        "vocab_size": keys.count("vocab_size"),
        "rms_norm_eps": keys.positive("rms_norm_eps"),
        "max_position_embeddings": keys.count("max_position_embeddings"),
        "initializer_range": keys.positive("initializer_range", default=0.02),
        "dtype": keys.dtype(),
    }


def _qwen3(keys: Keys) -> dict[str, Any]:
    keys.must_equal("model_type", "qwen3")
    for key in ("logit_scale", "partial_rotary_factor"):  # no tensor would show it
        _must_be_one(key, keys.raw.get(key))
    keys.must_equal("hidden_act", "silu", absent_is_fine=True)
    keys.must_equal("use_sliding_window", False, absent_is_fine=True)
    return {
        "model_type": "qwen3",
        "num_attention_heads": keys.count("num_attention_heads"),
        "num_key_value_heads": keys.count("num_key_value_heads"),
        "head_dim": keys.count("head_dim"),
        **_rope(keys),
        "interleaved": _interleaved(keys),
    }


def _gemma4(keys: Keys) -> dict[str, Any]:
    keys.must_equal("hidden_activation", "gelu_pytorch_tanh", absent_is_fine=True)
    # The variants with experts, per-layer inputs or shared keys have other tensors.
    refused = {
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
    }
    for key, plain in refused.items():
        if keys.raw.get(key, plain) not in (plain, None):
            raise UnsupportedFamily(f"{key}: {show(keys.raw[key])} is not supported")
    shared = keys.flag("attention_k_eq_v", default=False)
    theta, fraction = _proportional_rope(keys.raw)
    softcap = keys.raw.get("final_logit_softcapping")
    return {
        "model_type": "gemma4_text",
        "num_attention_heads": keys.count("num_attention_heads"),
        "num_key_value_heads": keys.count(
            "num_global_key_value_heads" if shared else "num_key_value_heads"
        ),
        "head_dim": keys.count("global_head_dim"),
        "attention_k_eq_v": shared,
        "rope_theta": theta,
        "rotary_fraction": fraction,
        "logit_softcap": None if softcap is None else positive("final_logit_softcapping", softcap),
    }


def layer_keys(raw: dict[str, Any]) -> dict[str, Any]:
    """The released keys of the fields above, from all fields of a config."""
    told = {key: raw[key] for key in _SAME}
    told |= {"attention_bias": False, "layer_types": ["full_attention"] * raw["num_hidden_layers"]}
    if raw["model_type"] == "qwen3":
        return told | {
            "hidden_act": "silu",
            "num_key_value_heads": raw["num_key_value_heads"],
            "head_dim": raw["head_dim"],
            "rope_parameters": {"rope_theta": raw["rope_theta"], "rope_type": "default"}
            if raw["yarn"] is None
            else {"rope_theta": raw["rope_theta"], "rope_type": "yarn", **raw["yarn"]},
        }
    full = {
        "rope_theta": raw["rope_theta"],
        "rope_type": "proportional",
        "partial_rotary_factor": raw["rotary_fraction"],
    }
    shared = raw["attention_k_eq_v"]
    return told | {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_k_eq_v": shared,
        "num_global_key_value_heads" if shared else "num_key_value_heads": raw[
            "num_key_value_heads"
        ],
        "global_head_dim": raw["head_dim"],
        "final_logit_softcapping": raw["logit_softcap"],
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "rope_parameters": {"full_attention": full},
    }


def _interleaved(keys: Keys) -> bool:
    """Whether a head's pairs are neighbours, by any of the setting's names."""
    said = {
        key: keys.flag(key, default=neighbours) == neighbours
        for key, neighbours in NEIGHBOURS.items()
        if keys.raw.get(key) is not None
    }
    if len(set(said.values())) > 1:
        raise CheckpointError(f"{' and '.join(said)}: say different things of the rotation")
    return any(said.values())


def _rope(keys: Keys) -> dict[str, Any]:
    """Rotation settings: in `rope_parameters` of current files, in older ones a bare `rope_theta`
    with `rope_scaling` beside it."""
    raw = keys.raw
    # the library prefers the older one
    where = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    parameters = raw.get(where)
    if parameters is None:
        return {"rope_theta": positive("rope_theta", raw.get("rope_theta"))}
    if not isinstance(parameters, dict):
        raise CheckpointError(f"{where}: expected an object, found {show(parameters)}")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise CheckpointError(f"{where}.rope_type: {show(kind)} is not supported")
    _must_be_one(f"{where}.partial_rotary_factor", parameters.get("partial_rotary_factor"))
    inside, beside = parameters.get("rope_theta"), raw.get("rope_theta")
    from_top = inside is None and beside is not None
    theta = positive("rope_theta", beside) if from_top else positive(f"{where}.rope_theta", inside)
    return {
        "rope_theta": theta,
        "yarn": _yarn(keys, parameters, where, theta) if kind == "yarn" else None,
    }


def _yarn(keys: Keys, raw: dict[str, Any], where: str, theta: float) -> Yarn:
    """YaRN from the settings `raw`, named `where` in complaints."""

    def number(key: str, default: float | None = None) -> float:
        return positive(f"{where}.{key}", default if raw.get(key) is None else raw[key])

    def sharpness(scale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

    original = number("original_max_position_embeddings")
    if original != int(original):
        raise CheckpointError(
            f"{where}.original_max_position_embeddings: {show(original)} is no length"
        )
    factor = number("factor", keys.count("max_position_embeddings") / original)
    if raw.get("mscale") and raw.get("mscale_all_dim"):
        sharp = sharpness(number("mscale")) / sharpness(number("mscale_all_dim"))
    else:
        sharp = sharpness(1.0)
    truncate = raw.get("truncate", True)
    if not isinstance(truncate, bool):
        raise CheckpointError(f"{where}.truncate: expected true or false, found {show(truncate)}")
    longer = number("attention_factor", sharp)
    made = Yarn(
        factor, int(original), longer, number("beta_fast", 32.0), number("beta_slow", 1.0), truncate
    )
    try:
        made.mixed(keys.count("head_dim"), theta)
    except (ArithmeticError, ValueError) as error:
        raise CheckpointError(f"{where}: these numbers give no rotation ({error})") from error
    return made


def _must_be_one(key: str, value: object) -> None:
    if value not in (None, 1):
        raise UnsupportedFamily(f"{key}: {show(value)} is not supported")


def _proportional_rope(raw: dict[str, Any]) -> tuple[float, float]:
    """(theta, fraction of pairs that rotate) of the global layers; other entries are for other
    layers."""
    whole = raw.get("rope_scaling") or raw.get("rope_parameters")
    full = whole.get("full_attention") if isinstance(whole, dict) else None
    if not isinstance(full, dict):
        raise CheckpointError(
            f"rope_parameters.full_attention: expected an object, found {show(full)}"
        )
    where = "rope_parameters.full_attention"
    if (kind := full.get("rope_type")) != "proportional":
        raise CheckpointError(f"{where}.rope_type: expected proportional, found {show(kind)}")
    if full.get("factor", 1.0) != 1.0:
        raise CheckpointError(f"{where}.factor: {show(full['factor'])} is not supported")
    fraction = positive(f"{where}.partial_rotary_factor", full.get("partial_rotary_factor", 1.0))
    if fraction > 1:
        raise CheckpointError(f"{where}.partial_rotary_factor: {fraction} is above 1")
    return positive(f"{where}.rope_theta", full.get("rope_theta")), fraction
