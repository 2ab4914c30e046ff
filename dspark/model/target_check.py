"""Checks a target's files before the library builds anything from them.

The library trusts config.json: it would make a million layers, or fetch code that the file names.
It reads and converts all weights before it reports what is wrong with them, which takes several
times their size.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from dspark.errors import CheckpointError
from dspark.model.config_keys import CONFIG_NAME, MOST_LAYERS, Keys, read_json, refuse, show
from dspark.model.formats.source import without_computed
from dspark.model.weights_file import FLOATS, TensorEntry, misshapen, read_tensors

_IMPLEMENTATION = re.compile("_implementation(_internal)?$")  # keys whose values name code
INTEGERS = ("I", "U", "BOOL", "C")  # prefixes of such dtypes, and of complex ones
_GENERATION = "generation_config.json"
_ADAPTER = "adapter_config.json"  # names another checkpoint, which would be loaded instead


def check_target_config(folder: Path, entries: Mapping[str, TensorEntry]) -> None:
    """Refuses settings that contradict the folder's own weights, by key."""
    if (folder / _ADAPTER).exists():
        raise CheckpointError(
            f"{folder / _ADAPTER}: adapters are not supported; merge it into its model"
        )
    path = folder / CONFIG_NAME
    raw = read_json(path)
    if (folder / _GENERATION).exists():
        # the library ignores one that it cannot read, with its stop ids
        read_json(folder / _GENERATION)
    nested = raw.get("text_config")
    try:
        _check_values("", raw)
        for part in (raw, nested) if isinstance(nested, dict) else (raw,):
            _check(part, entries)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_target_headers(
    folder: Path, entries: Mapping[str, TensorEntry]
) -> dict[str, TensorEntry]:
    """Refuses tensors that the library's model of this config has in another shape, does not have,
    or has as floats.

    By name, without reading any. Where the library has other names for weights than the file, or
    cannot build the model yet, its own report after loading decides. Returns the tensors that the
    library does not ignore.
    """
    model = _outline(folder)
    if model is None:
        return dict(entries)
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    entries = {
        name: entry
        for name, entry in without_computed(entries).items()
        if not any(re.search(each, name) for each in ignored)
    }
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    shared = sorted(expected.keys() & entries.keys())
    scales = {name for name in entries if "scale" in name.rpartition(".")[2]}
    parameters = {name for name, _ in model.named_parameters()}
    complaints = {
        "mismatched keys": misshapen(entries, expected),
        "not floating point": [
            f"{name} {entries[name].dtype}"
            for name in shared
            if name in parameters and entries[name].dtype.startswith(INTEGERS)
        ],
        # The library would read the bits as numbers.
        "without a scale": [
            name
            for name, entry in entries.items()
            if (entry.dtype.startswith("F8_E4M3") or name.endswith("_blocks"))
            and not _scaled(name, scales)
        ],
    }
    ties = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    tied = (getattr(model, "_tied_weights_keys", None) or ()) if ties else ()
    # Quantised weights have scales, under names that the model itself does not have.
    quantised = getattr(model.config, "quantization_config", None) is not None
    if not quantised and expected.keys() - set(tied) <= entries.keys():
        # all weights are there, so none is stored under another name
        complaints["unexpected keys"] = sorted(entries.keys() - expected.keys())
    refuse(folder, complaints)
    return entries


def _scaled(name: str, scales: Collection[str]) -> bool:
    """Whether one of `scales` belongs to a quantised weight: X.weight_scale_inv, X.scale, X_scales
    beside X_blocks."""
    stem = name.removesuffix("_blocks").removesuffix("weight")
    return any(scale.startswith(stem) for scale in scales)


def check_target_values(entries: Mapping[str, TensorEntry]) -> bool:
    """Refuses NaN and infinities, one tensor at a time. Returns whether all were checked: some
    formats it cannot read."""
    names = [name for name, entry in entries.items() if entry.dtype in FLOATS]
    for _ in read_tensors(entries, names):
        pass
    return len(names) == len(entries)


def _outline(folder: Path) -> Any:
    """The library's model without weights; None where it cannot be built."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        settings = AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(settings, trust_remote_code=False)
    except Exception:
        # an error of any type, for a strange file; loading reports it
        return None


def _check_values(key: str, value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise CheckpointError(f"{key}: {value} is not a finite number")
    if _IMPLEMENTATION.search(key) and "/" in json.dumps(value):
        raise CheckpointError(f"{key}: {show(value)} names code from elsewhere")
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, part in inside:
        _check_values(f"{key}.{name}" if key else str(name), part)


def _check(raw: dict[str, Any], entries: Mapping[str, TensorEntry]) -> None:
    keys = Keys(raw)
    if raw.get("num_hidden_layers") is not None:
        layers = keys.count("num_hidden_layers", most=MOST_LAYERS)
        if layers > len(entries):
            raise CheckpointError(f"num_hidden_layers: {layers} layers of {len(entries)} tensors")
    if raw.get("max_position_embeddings") is not None:
        keys.count("max_position_embeddings", least=2)
    if raw.get("vocab_size") is None or raw.get("hidden_size") is None:
        return  # the library's defaults, which are of ordinary size
    # OPT's tables may be narrower
    width = keys.count("word_embed_proj_dim", default=keys.count("hidden_size"))
    table = (keys.count("vocab_size"), width)
    if not any(entry.shape == table for entry in entries.values()):
        raise CheckpointError(
            f"vocab_size, hidden_size: no tensor is {list(table)}, as the embedding would be"
        )
    if raw.get("intermediate_size") is not None and not isinstance(raw["intermediate_size"], list):
        keys.count("intermediate_size")
    for key in ("num_attention_heads", "num_key_value_heads", "head_dim"):
        if raw.get(key) is not None:
            keys.count(key, least=0, most=1 << 16)
