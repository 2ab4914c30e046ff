"""The part of a config.json that describes the layers of a drafter: Qwen3's or Gemma4's.

Both give the same keyword arguments of `DrafterConfig`. A Gemma4 drafter always has the target's
*global* layer shape.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dspark.errors import CheckpointError
from dspark.model.config import DrafterConfig, Yarn
from dspark.model.config_keys import (
    MOST_LAYERS,
    Keys,
    Table,
    fields_to_json,
    read_fields,
    show,
    spelled,
)

# Values of settings where pairs are neighbours; without any, pairs lie half a head apart.
NEIGHBOURS = {
    "rope_is_neox_style": False,
    "is_neox_style": False,
    "rope_interleave": True,
    "rope_interleaved": True,
}

SIZES: Table = {
    **spelled(
        Keys.count, "hidden_size", "num_attention_heads", "vocab_size", "max_position_embeddings"
    ),
    **spelled(Keys.positive, "initializer_range", default=0.02),
    **spelled(Keys.dtype, "dtype"),
}
_LAYERS: Table = {
    **SIZES,
    **spelled(Keys.count, "intermediate_size"),
    **spelled(Keys.count, "num_hidden_layers", most=MOST_LAYERS),
    **spelled(Keys.positive, "rms_norm_eps"),
}
# By the layers' kind: values that a file says, or leaves out, and may not change.
_FIXED: dict[str, dict[str, Any]] = {
    "qwen3": {"attention_bias": False, "hidden_act": "silu", "use_sliding_window": False},
    "gemma4_text": {
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
    },
}


def _table(model_type: str, shared: bool) -> Table:
    """The keys of layers. shared: values come from the key projection."""
    if model_type != "gemma4_text":
        return {**_LAYERS, **spelled(Keys.count, "num_key_value_heads", "head_dim")}
    heads = "num_global_key_value_heads" if shared else "num_key_value_heads"
    return {
        **_LAYERS,
        **spelled(Keys.count, "num_key_value_heads", key=heads),
        **spelled(Keys.count, "head_dim", key="global_head_dim"),
        **spelled(Keys.flag, "attention_k_eq_v", default=False),
        **spelled(_if_there, "logit_softcap", key="final_logit_softcapping"),
    }


def layer_shape(keys: Keys) -> dict[str, Any]:
    """The `DrafterConfig` fields of layers, norms and positions."""
    raw = keys.raw
    gemma = raw.get("model_type") == "gemma4_text"
    kind = "gemma4_text" if gemma else "qwen3"
    keys.must_equal("model_type", kind)
    keys.may_be_absent(_FIXED[kind])
    if not gemma:  # no tensor would show these
        keys.may_be_absent({"logit_scale": 1, "partial_rotary_factor": 1})
    shared = gemma and keys.flag("attention_k_eq_v", default=False)
    shape = {"model_type": kind, **read_fields(keys, _table(kind, shared))}
    layers, heads = shape["num_hidden_layers"], shape["num_attention_heads"]
    types = raw.get("layer_types")
    if types is not None and types != ["full_attention"] * layers:
        raise CheckpointError(
            f"layer_types: expected {layers} times full_attention, found {show(types)}"
        )
    if heads % shape["num_key_value_heads"]:
        raise CheckpointError(
            f"num_attention_heads: {heads} is not a multiple of the "
            f"{shape['num_key_value_heads']} key-value heads"
        )
    if shape["head_dim"] % 2:
        raise CheckpointError(f"head_dim: {shape['head_dim']} is odd, rotary positions need pairs")
    if gemma:
        return shape | _proportional_rope(keys)
    return shape | _rope(keys) | {"interleaved": _interleaved(keys)}


def layer_keys(config: DrafterConfig) -> dict[str, Any]:
    """The released keys of the fields above."""
    kind = config.model_type
    rope: dict[str, Any] = {"rope_theta": config.rope_theta}
    if config.gemma:
        rope |= {"rope_type": "proportional", "partial_rotary_factor": config.rotary_fraction}
    elif config.yarn is None:
        rope |= {"rope_type": "default"}
    else:
        rope |= {"rope_type": "yarn", **dataclasses.asdict(config.yarn)}
    return {
        **_FIXED[kind],
        **fields_to_json(config, _table(kind, config.attention_k_eq_v)),
        "model_type": kind,
        "layer_types": ["full_attention"] * config.num_hidden_layers,
        "rope_parameters": {"full_attention": rope} if config.gemma else rope,
    }


def _if_there(keys: Keys, key: str) -> float | None:
    return None if keys.raw.get(key) is None else keys.positive(key)


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


def _rotation(keys: Keys) -> Keys:
    """The settings of the rotation; of two, the library prefers the older ones."""
    return keys.inside("rope_scaling" if keys.raw.get("rope_scaling") else "rope_parameters")


def _rope(keys: Keys) -> dict[str, Any]:
    """Rotation settings: in `rope_parameters` of current files, in older ones a bare `rope_theta`
    with `rope_scaling` beside it."""
    if keys.raw.get("rope_scaling") or keys.raw.get("rope_parameters") is not None:
        inner = _rotation(keys)
    else:
        return {"rope_theta": keys.positive("rope_theta")}
    kind = inner.raw.get("rope_type", inner.raw.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise inner.wrong("rope_type", "default or yarn", kind)
    inner.may_be_absent({"partial_rotary_factor": 1})
    beside = inner.raw.get("rope_theta") is None and keys.raw.get("rope_theta") is not None
    theta = (keys if beside else inner).positive("rope_theta")
    return {"rope_theta": theta, "yarn": _yarn(keys, inner, theta) if kind == "yarn" else None}


def _yarn(keys: Keys, inner: Keys, theta: float) -> Yarn:
    """YaRN from the settings `inner` of the rotation."""

    def sharpness(scale: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

    original = inner.positive("original_max_position_embeddings")
    if original != int(original):
        raise inner.wrong("original_max_position_embeddings", "a length", original)
    factor = inner.positive("factor", default=keys.count("max_position_embeddings") / original)
    sharp = sharpness(1.0)
    if inner.raw.get("mscale") and inner.raw.get("mscale_all_dim"):
        sharp = sharpness(inner.positive("mscale")) / sharpness(inner.positive("mscale_all_dim"))
    made = Yarn(
        factor,
        int(original),
        inner.positive("attention_factor", default=sharp),
        inner.positive("beta_fast", default=Yarn.beta_fast),
        inner.positive("beta_slow", default=Yarn.beta_slow),
        inner.flag("truncate", default=Yarn.truncate),
    )
    try:
        made.mixed(keys.count("head_dim"), theta)
    except (ArithmeticError, ValueError) as error:
        where = inner.where.removesuffix(".")
        raise CheckpointError(f"{where}: these numbers give no rotation ({error})") from error
    return made


def _proportional_rope(keys: Keys) -> dict[str, Any]:
    """Base and fraction of the pairs that rotate, of the global layers; other entries are for other
    layers."""
    full = _rotation(keys).inside("full_attention")
    full.must_equal("rope_type", "proportional")
    full.may_be_absent({"factor": 1.0})
    fraction = full.positive("partial_rotary_factor", default=1.0)
    if fraction > 1:
        raise full.wrong("partial_rotary_factor", "a share up to 1", fraction)
    return {"rope_theta": full.positive("rope_theta"), "rotary_fraction": fraction}
