"""GGUF architectures: for each, the keys of its settings, the names of its tensors and what is
converted.

Three conversions of llama.cpp are undone. Files of llama shape hold the rows of q and k in pairs,
for a rotation of neighbours; the library rotates halves. Files of gemma shape hold norms as 1 + w;
the library adds the 1 itself. Rotary frequencies may be stored as divisors, one per pair of a
head's values, as for Llama 3.1 and later, where model folders state the rule that makes them: the
published rule that gives these divisors is taken, others are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dspark.errors import CheckpointError
from dspark.model.config_keys import MOST_LAYERS, Keys

# Scales of other architectures, which no tensor would show.
_SCALES = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")
# Layers of each family's largest model, whose queries are scaled by the width per head instead of
# by the head's size; nothing in the file says so but the depth.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
DIVISORS = "rope_freqs.weight"
# Llama 3.1 to 3.3: bounds of wavelengths per context before scaling, and that context
_LOW, _HIGH, _BEFORE = 1.0, 4.0, 8192
_FACTORS = (8.0, 16.0, 32.0)
_CLOSE = 1e-3


@dataclass(frozen=True)
class Architecture:
    """What one architecture is in the library, and which conversions its files need."""

    model_type: str
    model_class: str
    paired_rotation: bool = False
    norms_from_one: bool = False
    rope_theta: float = 10_000.0  # where a file states none


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", paired_rotation=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM"),
    "gemma2": Architecture("gemma2", "Gemma2ForCausalLM", norms_from_one=True),
    "gemma3": Architecture(
        "gemma3_text", "Gemma3ForCausalLM", norms_from_one=True, rope_theta=1_000_000.0
    ),
}


def architecture_of(settings: Mapping[str, Any]) -> Architecture:
    """The architecture of a file; CheckpointError for one that cannot be served."""
    name = settings.get("general.architecture")
    if str(name) not in ARCHITECTURES:
        raise CheckpointError(
            f"general.architecture: {name!r} is none of {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[str(name)]


def config_of(settings: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a file with these settings and tensor names. Raises CheckpointError."""
    made = architecture_of(settings)
    prefix = settings["general.architecture"]
    keys = Keys(
        {name.removeprefix(f"{prefix}."): each for name, each in settings.items()}, f"{prefix}."
    )
    tokens = settings.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens:
        raise CheckpointError("tokenizer.ggml.tokens: no list of tokens")
    config: dict[str, Any] = {
        "max_position_embeddings": keys.count("context_length"),
        "num_hidden_layers": keys.count("block_count", most=MOST_LAYERS),
        "hidden_size": keys.count("embedding_length"),
        "intermediate_size": keys.count("feed_forward_length"),
        "num_attention_heads": keys.count("attention.head_count"),
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
    }
    heads = config["num_attention_heads"]
    rotating = keys.count("rope.dimension_count", default=config["hidden_size"] // heads)
    size = keys.count("attention.key_length", default=rotating)
    if ("rope.dimension_count" in keys.raw and rotating != size) or size % 2:
        raise CheckpointError(
            f"{prefix}.rope.dimension_count: {rotating} of a head's {size} values: not supported"
        )
    keys.may_be_absent(dict.fromkeys(_SCALES, 1))
    config |= {
        "architectures": [made.model_class],
        "model_type": made.model_type,
        "num_key_value_heads": keys.count("attention.head_count_kv", default=heads),
        "head_dim": size,
        "vocab_size": len(tokens),
        "tie_word_embeddings": "output.weight" not in names,
        "rope_theta": keys.positive("rope.freq_base", default=made.rope_theta),
        "dtype": "bfloat16",
        **{
            f"{token}_token_id": token_id(settings, theirs)
            for token, theirs in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"))
        },
    }
    scaling = keys.raw.get("rope.scaling.type", "none")
    if scaling == "linear":
        factor = keys.positive("rope.scaling.factor")
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif scaling != "none":
        raise CheckpointError(f"{prefix}.rope.scaling.type: {scaling!r} is neither none nor linear")
    if made.norms_from_one:
        by_width = config["num_hidden_layers"] == _SCALED_BY_WIDTH[prefix]
        config["sliding_window"] = keys.count("attention.sliding_window")
        config["query_pre_attn_scalar"] = config["hidden_size"] // heads if by_width else size
    if prefix == "gemma2":
        config["attn_logit_softcapping"] = keys.positive("attn_logit_softcapping", default=50.0)
        config["final_logit_softcapping"] = keys.positive("final_logit_softcapping", default=30.0)
    return config


def token_id(settings: Mapping[str, Any], name: str) -> int | None:
    """Id of the token that a file names for a role such as `eos`; None where it names none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if settings.get(key) is None:
        return None
    return Keys(dict(settings)).count(key, least=0, most=len(settings["tokenizer.ggml.tokens"]) - 1)


def expected(config: Mapping[str, Any], architecture: str) -> dict[str, str]:
    """Every tensor the model needs: its name in the file -> the library's name."""
    from gguf import MODEL_ARCH, get_tensor_name_map
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    except Exception as error:  # of any type, for strange settings
        raise CheckpointError(f"{architecture}: {' '.join(str(error).split())}") from error
    theirs = get_tensor_name_map(MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    names = [
        name
        for name in model.state_dict()
        if name != "lm_head.weight" or not config["tie_word_embeddings"]
    ]
    # gguf's list lacks an untied head for architectures that usually tie it.
    return {
        theirs.get_name(name, (".weight", ".bias")) or name.replace("lm_head", "output"): name
        for name in names
    }


def restored(name: str, values: Any, config: Mapping[str, Any], made: Architecture) -> Any:
    """Converts a tensor's float32 values to the library's layout, [rows, ...]."""
    place = name.split(".")[-2]
    if made.paired_rotation and place in ("attn_q", "attn_k"):
        heads = config["num_attention_heads" if place == "attn_q" else "num_key_value_heads"]
        if values.shape[0] % (2 * heads):
            raise CheckpointError(
                f"{name}: {values.shape[0]} rows are not {heads} heads of an even size"
            )
        pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
        return pairs.swapaxes(1, 2).reshape(values.shape)
    return values - 1 if made.norms_from_one and place.endswith("norm") else values


def scaling_of(divisors: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The `rope_scaling` of config.json for float32 divisors [head_dim / 2]."""
    for factor in _FACTORS:
        wanted = _divisors(config["head_dim"], config["rope_theta"], factor)
        if divisors.shape == wanted.shape and np.allclose(divisors, wanted, rtol=_CLOSE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": _BEFORE,
            }
    raise CheckpointError(f"{DIVISORS}: these frequencies are of no rule that is known here")


def _divisors(head_dim: int, theta: float, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The divisors of the llama3 rule, [head_dim / 2]: 1 for short wavelengths, the factor for long
    ones, and rising between the two."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    kept = np.clip((_BEFORE / wavelengths - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - kept) / factor + kept)
