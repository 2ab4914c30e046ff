"""Converts configs of the speculators format to the released keys, and back. Pure: JSON objects in
and out.

Four things differ. Shapes of the layers are nested in `transformer_layer_config`, which may leave
out whatever has the library's default. Tap ids count hidden states, where 0 is the embedding
output, so layer L is L + 1. `block_size` is the length of the query; without `sample_from_anchor`
(absent means false) its first slot drafts nothing. And the head may draft from a smaller
vocabulary, `draft_vocab_size`, which two tensors `d2t` and `t2d` map to the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config_keys import Keys
from dspark.model.config_layers import NEIGHBOURS

FAMILIES = ("dspark", "dflash", "eagle3")
_QUERY_ANCHOR = ("dspark", "dflash")  # families whose block is one pass over anchor and masks
# Defaults of the library's Qwen3 configuration.
_QWEN3: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "use_sliding_window": False,
}
_LAYER_KEYS = (
    *_QWEN3,
    "layer_types",
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "partial_rotary_factor",
)
_HEADS = (
    "markov_rank",
    "markov_head_type",
    "enable_confidence_head",
    "confidence_head_with_markov",
)


def is_speculators(raw: Mapping[str, Any]) -> bool:
    """Whether a decoded config.json is of this format."""
    return "speculators_model_type" in raw or "speculators_config" in raw


def to_released(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The released keys of a speculators config.json; every complaint names the key."""
    family, keys = _family(raw), Keys({**raw})
    inner = keys.inside("transformer_layer_config")
    inner.may_be_absent({"model_type": "qwen3"})
    layer = inner.raw
    said = _QWEN3 | {key: layer[key] for key in _LAYER_KEYS if layer.get(key) is not None}
    for where in (layer, raw):  # some trainers write them beside the layers
        said |= {
            key: where[key] for key in (*NEIGHBOURS, "logit_scale") if where.get(key) is not None
        }
    said.setdefault("rope_theta", 10000.0)
    keys.may_be_absent({"target_hidden_size": said["hidden_size"]})
    said |= {
        "model_type": "qwen3",
        "target_layer_ids": _released_ids(raw),
        "num_target_layers": 0,  # the format does not state it
        "dtype": raw.get("dtype") or raw.get("torch_dtype") or layer.get("dtype") or "bfloat16",
    }
    narrow = raw.get("draft_vocab_size")
    if narrow is not None and narrow != said["vocab_size"]:
        said["draft_vocab_size"] = narrow
    else:  # a draft vocabulary has two tables; the nested value is the target's
        said["tie_word_embeddings"] = raw.get("tie_word_embeddings")
    return said | (_eagle3(keys) if family == "eagle3" else _block(keys, family))


def from_released(
    raw: Mapping[str, Any], *, family: str, verifier: str | None = None
) -> dict[str, Any]:
    """The speculators config.json of a released one. `verifier`: name or path of the target."""
    if raw.get("model_type") != "qwen3":
        raise UnsupportedFamily(
            f"model_type: {raw.get('model_type')!r} has no form in the speculators format"
        )
    anchor = bool(raw.get("sample_from_anchor", True))
    drafted = int(raw["block_size" if family in _QUERY_ANCHOR else "ttt_length"])
    layer = {key: raw[key] for key in _LAYER_KEYS if raw.get(key) is not None}
    ids = [layer_id + 1 for layer_id in raw["target_layer_ids"]]
    written: dict[str, Any] = {
        "architectures": [
            {"dspark": "DSpark", "dflash": "DFlash", "eagle3": "Eagle3"}[family] + "Speculator"
        ],
        "speculators_model_type": family,
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": family,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": drafted}],
            "verifier": {"name_or_path": verifier, "architectures": ["Qwen3ForCausalLM"]},
        },
        "transformer_layer_config": layer | {"model_type": "qwen3"},
        "draft_vocab_size": raw.get("draft_vocab_size", raw["vocab_size"]),
        "dtype": raw.get("dtype", "bfloat16"),
        "tie_word_embeddings": False,
    }
    if family == "eagle3":
        return written | {"eagle_aux_hidden_state_layer_ids": ids, "norm_before_residual": False}
    return written | {
        "aux_hidden_state_layer_ids": ids,
        "block_size": drafted + (not anchor),
        "mask_token_id": raw["mask_token_id"],
        "num_anchors": raw.get("num_anchors", 512),
        "sample_from_anchor": anchor,
        **{key: raw[key] for key in _HEADS if raw.get(key) is not None},
    }


def _family(raw: Mapping[str, Any]) -> str:
    settings = raw.get("speculators_config")
    named = raw.get("speculators_model_type") or (
        settings.get("algorithm") if isinstance(settings, dict) else None
    )
    if named not in FAMILIES or raw.get("projector_type", "dflash") != "dflash":
        what = named if named not in FAMILIES else raw.get("projector_type")
        raise UnsupportedFamily(
            f"speculators_model_type: {what!r} drafters are not supported, {', '.join(FAMILIES)} "
            "are"
        )
    return str(named)


def _released_ids(raw: Mapping[str, Any]) -> list[int]:
    """Layer ids from the file's hidden-state indices."""
    for key in (
        "aux_hidden_state_layer_ids",
        "eagle_aux_hidden_state_layer_ids",
        "target_layer_ids",
    ):
        if (value := raw.get(key)) is not None:
            if (
                not isinstance(value, list)
                or {type(each) for each in value} != {int}
                or sorted(set(value)) != value
            ):
                raise CheckpointError(
                    f"{key}: expected ascending ids of hidden states, found {value!r}"
                )
            return [each - 1 for each in value]
    raise CheckpointError("aux_hidden_state_layer_ids: missing")


def _block(keys: Keys, family: str) -> dict[str, Any]:
    raw, anchor = keys.raw, keys.flag("sample_from_anchor", default=False)
    size = keys.count("block_size", least=1 + (not anchor))
    heads = (
        {key: raw[key] for key in _HEADS if raw.get(key) is not None} if family == "dspark" else {}
    )
    return heads | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": size if anchor else size - 1,
        "sample_from_anchor": anchor,
        "mask_token_id": raw.get("mask_token_id"),
        "num_anchors": raw.get("num_anchors"),
    }


def _eagle3(keys: Keys) -> dict[str, Any]:
    keys.may_be_absent({"norm_before_residual": False, "norm_before_fc": False})
    settings = keys.raw.get("speculators_config")
    methods = settings.get("proposal_methods") if isinstance(settings, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    if not isinstance(first, dict):
        raise CheckpointError(
            "speculators_config.proposal_methods: says nothing of speculative_tokens"
        )
    return {"architectures": ["Qwen3Eagle3Model"], "ttt_length": first.get("speculative_tokens")}
