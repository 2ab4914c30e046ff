"""Describes a drafter's folder in words and figures, after loading and checking every tensor."""

from __future__ import annotations

import math

import torch

from dspark.errors import CheckpointError
from dspark.model.checkpoint import load_drafter
from dspark.model.config import CONFIG_NAME, DrafterConfig
from dspark.model.config_file import read_drafter_config
from dspark.model.config_keys import read_json
from dspark.model.formats.nested import is_nested
from dspark.model.formats.source import left_out
from dspark.model.formats.speculators import is_speculators
from dspark.model.location import locate
from dspark.model.pairing import mismatch, sizes_of
from dspark.model.weights_file import read_directory, weight_files


def report(
    name: str, *, revision: str | None = None, target: str | None = None
) -> dict[str, object]:
    """The description by field. Raises CheckpointError where a tensor is missing, unexpected,
    misshapen or not finite, or the target does not fit."""
    folder = locate(name, revision=revision)
    raw, stored, shape = (
        read_json(folder / CONFIG_NAME),
        read_directory(folder),
        read_drafter_config(folder),
    )
    # in the stored dtype: weights are mapped, not copied
    drafter = load_drafter(folder, dtype=getattr(torch, shape.dtype), target=target)
    kept = drafter.draft_vocabulary
    said: dict[str, object] = {
        "format": _format(raw, shape),
        "family": shape.family,
        "layers": f"{shape.num_hidden_layers} x {shape.model_type}",
        "hidden_size": shape.hidden_size,
        "target_layers": ",".join(map(str, shape.target_layer_ids)) or "none",
        "drafted_tokens": shape.block_size,
        "rotation": _rotation(shape),
        "vocabulary": shape.vocab_size,
        "draft_vocabulary": shape.head_size,
        "vocabulary_map": "none"
        if kept is None
        else f"d2t, {len(kept.target_ids)} of {shape.vocab_size} tokens",
        "tables": _tables(shape, left_out(folder, shape), target),
        "sequential_head": shape.markov_head_type,
        "confidence_head": shape.enable_confidence_head,
        "tensors": len(stored),
        "parameters": sum(math.prod(entry.shape) for entry in stored.values()),
        "bytes": sum(file.stat().st_size for file in weight_files(folder)),
        "fingerprint": drafter.fingerprint,
    }
    if target is not None:
        theirs = locate(target, weights=False)
        problem = mismatch(shape, folder, target=theirs, **sizes_of(theirs))
        if problem is not None:
            raise CheckpointError(problem)
        said["target"] = "fits"
    return said


def _rotation(shape: DrafterConfig) -> str:
    """How positions rotate queries and keys, and what the loader changes."""
    if shape.stage is not None:
        how = f"neighbouring pairs of the last {shape.stage.rope_dim} of {shape.head_dim} values"
    elif shape.interleaved:
        how = "neighbouring pairs, reordered when loaded"
    else:
        how = "pairs half a head apart"
    part = f", {shape.rotary_fraction:g} of them" if shape.rotary_fraction < 1 else ""
    longer = "" if shape.yarn is None else f", yarn of {shape.yarn.factor:g}"
    return f"{how}{part}, base {shape.rope_theta:g}{longer}"


def _tables(shape: DrafterConfig, absent: list[str], target: str | None) -> str:
    """Where embedding and head are read from."""
    whose = f"from {target}" if target else "the target's"
    said = f"{' and '.join(absent)} {whose}" if absent else "its own"
    return f"{said}, one for both" if shape.tie_word_embeddings else said


def _format(raw: dict[str, object], shape: DrafterConfig) -> str:
    if shape.stage is not None:
        return shape.model_type
    if is_nested(raw):
        return "dflash_config"
    return "speculators" if is_speculators(raw) else "library" if shape.kind == "lm" else "deepspec"
