"""Estimates the memory of a worker from its settings and the files of its models. Reads sizes,
never a tensor.

Ray reserves the estimate, an upper bound: weights in the number format they are computed in, and a
cache that is full. Models that are not on this machine count as zero beside the process itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.topology import POOLS, ProcessRole
from dspark.errors import DsparkError
from dspark.model.config_file import read_drafter_config
from dspark.model.config_keys import CONFIG_NAME, Keys, read_json, text_keys
from dspark.model.pairing import text_config
from dspark.targets import folder_of, is_imported
from verify_service.config import KV_TOKENS

MIB = 1 << 20
LIGHT = 256 * MIB  # a process without torch
HEAVY = 640 * MIB  # torch, transformers and their working memory
ON_CARD = 2048 * MIB  # main memory of a process whose weights and cache lie on a card
_SIZES = (
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "num_key_value_heads",
    "head_dim",
)
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def ranks_of(role: ProcessRole, settings: Mapping[str, Any]) -> int:
    """Processes of a worker: a verifier has one for each rank of its target."""
    return int(settings.get("tensor_parallel_size", 1)) if role is ProcessRole.VERIFY else 1


def of(role: ProcessRole, settings: Mapping[str, Any]) -> int:
    """Bytes of main memory of one worker; on a processor unless its settings name a card."""
    if role not in POOLS or settings.get("engine") == "synthetic":
        return LIGHT
    if str(settings.get("device")).startswith("cuda"):
        return ON_CARD * ranks_of(role, settings)
    itself = HEAVY * ranks_of(role, settings)
    verifies = role is ProcessRole.VERIFY
    folder = _folder(str(settings.get("target" if verifies else "drafter") or ""))
    if folder is None:
        return itself
    number = _BYTES.get(str(settings.get("dtype")), 4)  # `auto` is float32 on a processor
    try:
        config = read_json(folder / CONFIG_NAME)
        keys = text_keys(config)
        stored = _BYTES[keys.dtype("dtype")]
        row = _row(keys, folder)
    except DsparkError:  # the worker itself reports what is wrong
        return itself
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) * number // stored
    if verifies:
        tokens = int(settings["kv_tokens"]) or KV_TOKENS
        return itself + weights + tokens * (row * number + _features(settings))
    if "target_layer_ids" in config:
        weights += _left_out(folder, keys) * number
    return itself + weights + int(settings["context_tokens"]) * row * number


def _features(settings: Mapping[str, Any]) -> int:
    """Bytes of the feature row that a verifier keeps per token for drafters."""
    folder = _folder(str(settings.get("drafter") or ""))
    if folder is None:
        return 0
    try:
        config = read_drafter_config(folder)
    except DsparkError:
        return 0
    if not config.target_layer_ids:  # drafters that read token ids alone
        return 0
    return config.hidden_size * _BYTES["bfloat16"]


def _row(keys: Keys, folder: Path) -> int:
    """Numbers that a KV cache holds per token: keys and values of every layer."""
    try:
        layers, heads = (keys.count(name) for name in _SIZES[:2])
    except DsparkError:  # left out or called otherwise, which the library knows
        text = text_config(folder)
        keys = Keys({name: getattr(text, name, None) for name in _SIZES})
        layers, heads = (keys.count(name) for name in _SIZES[:2])
    size = keys.count("head_dim", default=max(keys.count("hidden_size") // heads, 1))
    return 2 * layers * keys.count("num_key_value_heads", default=heads) * size


def _left_out(folder: Path, keys: Keys) -> int:
    """Numbers in the tables that a drafter's files lack: it loads its target's instead."""
    rows = {name: keys.count("vocab_size") for name in ("embed_tokens.weight", "lm_head.weight")}
    rows["lm_head.weight"] = keys.count("draft_vocab_size", default=rows["lm_head.weight"])
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = stream.read(min(int.from_bytes(stream.read(8), "little"), 8 * MIB))
        rows = {name: count for name, count in rows.items() if f'{name}"'.encode() not in header}
    return sum(rows.values()) * keys.count("hidden_size")


def _folder(model: str) -> Path | None:
    """Folder of a model on this machine, if any; a hub id is looked up in the local cache alone."""
    if not model or model == "none":
        return None
    path = folder_of(model) if is_imported(model) else Path(model)
    if path.is_dir():
        return path
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model, CONFIG_NAME)
    except Exception:  # no such library, or no such id: there is nothing to measure
        return None
    return Path(found).parent if isinstance(found, str) else None
