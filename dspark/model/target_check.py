"""What a target's config.json may ask for, looked at before the library builds anything from it.

The library trusts that file: it would make a million layers, or fetch code that the file names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError
from dspark.model.config_keys import CONFIG_NAME, Keys, read_json, show
from dspark.model.weights_file import Entry

MOST_LAYERS = 1024
_IMPLEMENTATIONS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
_ADAPTER = "adapter_config.json"  # names another checkpoint, which would be loaded in its place


def check_target_config(folder: Path, entries: Mapping[str, Entry]) -> None:
    """Refuses settings that do not go with the folder's own weights, by key."""
    if (folder / _ADAPTER).exists():
        raise CheckpointError(f"{folder / _ADAPTER}: adapters are not supported; merge it into its model")
    path = folder / CONFIG_NAME
    raw = read_json(path)
    nested = raw.get("text_config")
    try:
        _check_finite("", raw)
        for part in (raw, nested) if isinstance(nested, dict) else (raw,):
            _check(part, entries)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def _check_finite(key: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{key}: {value} is not a finite number")
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inside:
        _check_finite(f"{key}.{name}" if key else str(name), part)


def _check(raw: dict[str, Any], entries: Mapping[str, Entry]) -> None:
    for key in _IMPLEMENTATIONS:
        if "/" in show(raw.get(key)):
            raise CheckpointError(f"{key}: {show(raw[key])} names code from elsewhere")
    keys = Keys(raw)
    if raw.get("num_hidden_layers") is not None:
        layers = keys.count("num_hidden_layers", most=MOST_LAYERS)
        if layers > len(entries):
            raise CheckpointError(f"num_hidden_layers: {layers} layers of {len(entries)} tensors")
    if raw.get("vocab_size") is None or raw.get("hidden_size") is None:
        return  # the library's defaults, which are of ordinary size
    table = (keys.count("vocab_size"), keys.count("hidden_size"))
    if not any(entry.shape == table for entry in entries.values()):
        raise CheckpointError(f"vocab_size, hidden_size: no tensor is {list(table)}, as the embedding would be")
    if raw.get("intermediate_size") is not None and not isinstance(raw["intermediate_size"], list):
        keys.count("intermediate_size")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if raw.get(key) is not None:
            keys.count(key, least=0, most=1 << 16)
