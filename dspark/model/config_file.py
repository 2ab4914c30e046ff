"""Reads and writes a draft checkpoint's config.json: which family it is, checked by schema.

Reads keys and values; of tensors, names and shapes where settings leave something open. The
released key sets are DSpark's, DFlash's and Eagle3's over Qwen3 and Gemma4 layers. MTP-1 has no
released form of its own: it is spelled alike, with `num_nextn_predict_layers`. A language model is
any Qwen3 checkpoint as it was published; DeepSeek-V4's drafter is a part of its target's. Families
that are not built are refused by name, so that a caller can tell "not yet" from "broken".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config import DrafterConfig, HeadType, Kind
from dspark.model.config_keys import (
    CONFIG_NAME,
    Keys,
    Table,
    fields_to_json,
    read_fields,
    read_json,
    show,
    spelled,
)
from dspark.model.config_layers import layer_keys, layer_shape
from dspark.model.formats import deepseek_v4, released
from dspark.rounds.plan import MAX_SLOTS

if TYPE_CHECKING:
    from dspark.model.weights_file import TensorEntry

LANGUAGE_MODELS = ("Qwen3ForCausalLM",)
DRAFT_TOKENS = 7  # of a language model or an MTP module whose file states none
# Class names, after the name of the layers' family. Both block families have one; only their heads
# differ.
_CLASS = {"block": "DSparkModel", "eagle3": "Eagle3Model", "mtp": "MTPModel", "lm": "ForCausalLM"}


def _head_type(keys: Keys, key: str) -> str:
    if not keys.count("markov_rank", default=0, least=0):
        return "none"
    _, *known = get_args(HeadType)
    value = keys.raw.get(key, "vanilla")
    if value not in known:
        raise CheckpointError(f"{key}: expected one of {', '.join(known)}, found {show(value)}")
    return str(value)


def _with_markov(keys: Keys, key: str) -> bool:
    confident = keys.flag("enable_confidence_head", default=False)
    return confident and keys.flag(key, default=False)


def _draft_vocabulary(keys: Keys, key: str) -> int:
    whole = keys.count("vocab_size")
    narrow = keys.count(key, default=whole, most=whole)
    return narrow if narrow != whole else 0


def _layer_ids(keys: Keys, key: str, *, least: int) -> tuple[int, ...]:
    layers = keys.count("num_target_layers", least=0)
    return keys.layer_ids(key, least=least, layers=layers)


# The keys of a family, beside those of its layers.
_TIED = spelled(Keys.flag, "tie_word_embeddings", default=False)
_TAPPED: Table = {
    **_TIED,
    **spelled(_layer_ids, "target_layer_ids", least=0),
    **spelled(Keys.count, "num_target_layers", least=0),
    **spelled(_draft_vocabulary, "draft_vocab_size", unless=0),
}
_DECAY = spelled(Keys.positive, "step_loss_decay", default=0.8)
_STEPS = spelled(Keys.count, "block_size", default=DRAFT_TOKENS, most=MAX_SLOTS)
_FAMILIES: dict[Kind, Table] = {
    "block": {
        **_TAPPED,
        **spelled(_layer_ids, "target_layer_ids", least=-1),
        **spelled(Keys.count, "block_size", most=MAX_SLOTS),
        **spelled(Keys.count, "mask_token_id", least=0),
        **spelled(Keys.count, "markov_rank", default=0, least=0),
        **spelled(_head_type, "markov_head_type", unless="none"),
        **spelled(Keys.flag, "enable_confidence_head", default=False),
        **spelled(_with_markov, "confidence_head_with_markov"),
        **spelled(Keys.count, "num_anchors", default=512),
        **spelled(Keys.flag, "sample_from_anchor", default=True, unless=True),
    },
    "eagle3": {
        **_TAPPED,
        **_DECAY,
        **spelled(Keys.count, "block_size", key="ttt_length", most=MAX_SLOTS),
    },
    "mtp": {**_TAPPED, **_DECAY, **_STEPS},
    "lm": {**_TIED, **_STEPS},  # which a published file does not have
}
# What else a file of a family says.
_ALSO: dict[Kind, dict[str, Any]] = {
    "eagle3": {"draft_num_hidden_layers": 1},
    "mtp": {"num_nextn_predict_layers": 1},
}


def read_drafter_config(folder: Path) -> DrafterConfig:
    """Parses `folder/config.json`; every error names the file's path."""
    path = folder / CONFIG_NAME
    raw = read_json(path)
    try:
        config = parse_drafter_config(raw, lambda: _tensors(folder))
        # settings may state another number
        stages = None if config.stage is None else deepseek_v4.stages_in(_tensors(folder))
    except CheckpointError as error:  # UnsupportedFamily, too
        raise type(error)(f"{path}: {error}") from error
    return config if stages is None else dataclasses.replace(config, num_hidden_layers=stages)


def parse_drafter_config(
    raw: Any, tensors: Callable[[], Mapping[str, TensorEntry]] = dict
) -> DrafterConfig:
    """Checks a decoded config.json key by key. tensors: of its folder, if a key is left out."""
    if not isinstance(raw, dict):
        raise CheckpointError(f"expected a JSON object, found {show(raw)}")
    if deepseek_v4.is_mine(raw):
        return deepseek_v4.parse(raw)
    raw = _completed(released(raw), tensors)
    kind, keys = _kind(raw), Keys(raw)
    config = DrafterConfig(**layer_shape(keys), **read_fields(keys, _FAMILIES[kind]), kind=kind)
    if kind == "block":
        keys.count("mask_token_id", least=0, most=config.vocab_size - 1)
    elif kind != "lm" and config.num_hidden_layers != 1:
        raise CheckpointError(
            f"num_hidden_layers: this family has one layer, found {config.num_hidden_layers}"
        )
    if kind == "mtp" and len(config.target_layer_ids) != 1:
        raise CheckpointError(
            f"target_layer_ids: expected one layer, found {show(list(config.target_layer_ids))}"
        )
    if config.markov_head_type == "rnn" and not config.sample_from_anchor:
        raise UnsupportedFamily(
            "markov_head_type: 'rnn' needs sample_from_anchor, its state would begin at the anchor"
        )
    if config.confidence_head_with_markov and not config.markov_rank:
        raise CheckpointError("confidence_head_with_markov: true needs markov_rank above 0")
    if config.tie_word_embeddings and config.draft_vocab_size:
        raise CheckpointError(
            "tie_word_embeddings: true, and a head of fewer tokens than the embedding"
        )
    return config


def _completed(
    raw: dict[str, Any], tensors: Callable[[], Mapping[str, TensorEntry]]
) -> dict[str, Any]:
    """Adds a `confidence_head_with_markov` that is left out, by the confidence head's shape."""
    said = raw.get("confidence_head_with_markov")
    if raw.get("enable_confidence_head") is not True or said is not None:
        return raw
    head = tensors().get("confidence_head.proj.weight")
    rank, size = raw.get("markov_rank") or 0, raw.get("hidden_size")
    if head is None or type(rank) is not int or type(size) is not int or len(head.shape) != 2:
        return raw
    return raw | {"confidence_head_with_markov": bool(rank) and head.shape[1] == size + rank}


def _tensors(folder: Path) -> Mapping[str, TensorEntry]:
    """The folder's tensor directory; empty without weights, or without torch to read them."""
    try:
        from dspark.model.weights_file import read_directory

        return read_directory(folder)
    except (CheckpointError, ModuleNotFoundError):
        return {}


def config_to_json(config: DrafterConfig) -> dict[str, Any]:
    """The released JSON of a config: `parse_drafter_config` of the result gives it back."""
    if config.stage is not None:
        return deepseek_v4.to_json(config)
    name = ("Gemma4" if config.gemma else "Qwen3") + _CLASS[config.kind]
    told = layer_keys(config) | fields_to_json(config, _FAMILIES[config.kind])
    told |= {"architectures": [name], **_ALSO.get(config.kind, {})}
    return dict(sorted(told.items()))


def _kind(raw: dict[str, Any]) -> Kind:
    """The family of a file; raises CheckpointError where it is none of ours."""
    names = raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if "Eagle3" in name or "ttt_length" in raw:
        return "eagle3"
    if name.endswith("MTPModel"):
        Keys(raw).must_equal("num_nextn_predict_layers", 1)
        return "mtp"
    if raw.get("block_size") is not None and raw.get("target_layer_ids") is not None:
        return "block"
    if name in LANGUAGE_MODELS:
        return "lm"
    if name.endswith("ForCausalLM"):
        raise UnsupportedFamily(
            f"architectures: {name} is not supported as a drafter of its own; "
            f"{', '.join(LANGUAGE_MODELS)} is"
        )
    raise CheckpointError(
        f"architectures: {show(names)} is no drafter (block_size and target_layer_ids are missing, "
        "and it is neither Eagle3 nor MTP nor a language model)"
    )
