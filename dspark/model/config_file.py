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
from typing import TYPE_CHECKING, Any, cast

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config import DrafterConfig, HeadType, Kind
from dspark.model.config_keys import CONFIG_NAME, Keys, read_json, show
from dspark.model.config_layers import layer_keys, layer_shape
from dspark.model.formats import deepseek_v4, released
from dspark.rounds.plan import MAX_SLOTS

if TYPE_CHECKING:
    from dspark.model.weights_file import TensorEntry

HEAD_TYPES = ("vanilla", "gated", "rnn")
LANGUAGE_MODELS = ("Qwen3ForCausalLM",)
DRAFT_TOKENS = 7  # of a language model or an MTP module whose file states none
# Class names, after the name of the layers' family. Both block families have one; only their heads
# differ.
_CLASS = {"block": "DSparkModel", "eagle3": "Eagle3Model", "mtp": "MTPModel", "lm": "ForCausalLM"}


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
    shape = layer_shape(keys)
    if kind == "lm":
        return _language_model(keys, shape)
    layers = keys.count("num_target_layers", least=0)
    own = _block(keys, shape["vocab_size"]) if kind == "block" else _chain(keys, kind)
    if kind != "block" and shape["num_hidden_layers"] != 1:
        raise CheckpointError(
            f"num_hidden_layers: this family has one layer, found {shape['num_hidden_layers']}"
        )
    taps = keys.layer_ids("target_layer_ids", least=-1 if kind == "block" else 0, layers=layers)
    if kind == "mtp" and len(taps) != 1:
        raise CheckpointError(f"target_layer_ids: expected one layer, found {show(list(taps))}")
    narrow = keys.count("draft_vocab_size", default=shape["vocab_size"], most=shape["vocab_size"])
    own["draft_vocab_size"] = narrow if narrow != shape["vocab_size"] else 0
    own["tie_word_embeddings"] = keys.flag("tie_word_embeddings", default=False)
    if own["tie_word_embeddings"] and own["draft_vocab_size"]:
        raise CheckpointError(
            "tie_word_embeddings: true, and a head of fewer tokens than the embedding"
        )
    return DrafterConfig(**shape, **own, kind=kind, target_layer_ids=taps, num_target_layers=layers)


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
    raw = dataclasses.asdict(config)
    told = layer_keys(raw) | {
        "architectures": [("Gemma4" if config.gemma else "Qwen3") + _CLASS[config.kind]],
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    if config.kind == "lm":
        return dict(sorted((told | {"block_size": config.block_size}).items()))
    told |= {
        "target_layer_ids": list(config.target_layer_ids),
        "num_target_layers": config.num_target_layers,
    }
    if config.draft_vocab_size:
        told["draft_vocab_size"] = config.draft_vocab_size
    if not config.sample_from_anchor:
        told["sample_from_anchor"] = False
    if config.kind == "block":
        told |= {
            key: raw[key] for key in ("block_size", "mask_token_id", "num_anchors", "markov_rank")
        }
        told["enable_confidence_head"] = config.enable_confidence_head
        if config.markov_rank:
            told["markov_head_type"] = config.markov_head_type
        if config.enable_confidence_head:
            told["confidence_head_with_markov"] = config.confidence_head_with_markov
    elif config.kind == "eagle3":
        told |= {"ttt_length": config.block_size, "step_loss_decay": config.step_loss_decay}
        told["draft_num_hidden_layers"] = 1
    else:
        told |= {"num_nextn_predict_layers": 1, "block_size": config.block_size}
        told["step_loss_decay"] = config.step_loss_decay
    return dict(sorted(told.items()))


def _kind(raw: dict[str, Any]) -> Kind:
    """The family of a file; raises CheckpointError where it is none of ours."""
    names = raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if "Eagle3" in name or "ttt_length" in raw:
        return "eagle3"
    if name.endswith("MTPModel"):
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


def _block(keys: Keys, vocab: int) -> dict[str, Any]:
    rank = keys.count("markov_rank", default=0, least=0)
    confident = keys.flag("enable_confidence_head", default=False)
    with_markov = confident and keys.flag("confidence_head_with_markov", default=False)
    if with_markov and not rank:
        raise CheckpointError("confidence_head_with_markov: true needs markov_rank above 0")
    head = _head_type(keys.raw.get("markov_head_type", "vanilla")) if rank else "none"
    anchored = keys.flag("sample_from_anchor", default=True)
    if head == "rnn" and not anchored:
        raise UnsupportedFamily(
            "markov_head_type: 'rnn' needs sample_from_anchor, its state would begin at the anchor"
        )
    return {
        "block_size": keys.count("block_size", most=MAX_SLOTS),
        "mask_token_id": keys.count("mask_token_id", least=0, most=vocab - 1),
        "markov_rank": rank,
        "markov_head_type": head,
        "enable_confidence_head": confident,
        "confidence_head_with_markov": with_markov,
        "num_anchors": keys.count("num_anchors", default=512),
        "sample_from_anchor": anchored,
    }


def _chain(keys: Keys, kind: Kind) -> dict[str, Any]:
    if kind == "eagle3":
        size = keys.count("ttt_length", most=MAX_SLOTS)
    else:
        keys.must_equal("num_nextn_predict_layers", 1)
        size = keys.count("block_size", default=DRAFT_TOKENS, most=MAX_SLOTS)
    return {"block_size": size, "step_loss_decay": keys.positive("step_loss_decay", default=0.8)}


def _language_model(keys: Keys, shape: dict[str, Any]) -> DrafterConfig:
    """Config of a language model; `block_size` may be added to its published file."""
    return DrafterConfig(
        **shape,
        kind="lm",
        block_size=keys.count("block_size", default=DRAFT_TOKENS, most=MAX_SLOTS),
        target_layer_ids=(),
        num_target_layers=0,
        tie_word_embeddings=keys.flag("tie_word_embeddings", default=False),
    )


def _head_type(value: object) -> HeadType:
    if value not in HEAD_TYPES:
        raise CheckpointError(
            f"markov_head_type: expected one of {', '.join(HEAD_TYPES)}, found {show(value)}"
        )
    return cast(HeadType, value)
