"""Checks whether a drafter fits a target: hidden size, depth and taps, vocabulary, tokenizer.

A drafter that does not fit would never change an answer, only accept nothing; it is refused before
it serves.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError
from dspark.model.config import DrafterConfig
from dspark.model.config_keys import (
    CONFIG_NAME,
    MOST_LAYERS,
    MOST_LISTING_BYTES,
    Keys,
    read_json,
    read_json_file,
    text_keys,
)

TOKENIZER_NAME = "tokenizer.json"


def text_config(folder: Path) -> Any:
    """transformers' config of a target's text model, read without any weight; CheckpointError if
    there is none."""
    keys = text_keys(read_json(folder / CONFIG_NAME))  # says better what is no file, or no JSON
    try:
        # the library may make a config of each
        keys.count("num_hidden_layers", default=1, most=MOST_LAYERS)
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        ).get_text_config()
    except Exception as error:  # of any type, for a strange file
        raise CheckpointError(f"{folder}: {error}") from error


def sizes_of(target: Path) -> dict[str, int]:
    """The sizes of a target that `mismatch` takes, from its config.json."""
    names = ("hidden_size", "vocab_size", "num_hidden_layers")
    keys = text_keys(read_json(target / CONFIG_NAME))
    if any(keys.raw.get(name) is None for name in names):
        # left out or called otherwise, which the library knows
        text = text_config(target)
        keys = Keys({name: getattr(text, name, None) for name in names})
    hidden_size, vocab_size, layers = (keys.count(name) for name in names)
    return {"hidden_size": hidden_size, "vocab_size": vocab_size, "layers": layers}


def mismatch(
    config: DrafterConfig,
    drafter: Path,
    *,
    target: Path,
    hidden_size: int,
    layers: int,
    vocab_size: int,
) -> str | None:
    """Why a folder's drafter does not fit a folder's target, whose sizes are given, or None."""
    if config.vocab_size != vocab_size:
        return (
            f"{drafter}: drafts from a vocabulary of {config.vocab_size}, the target {target} "
            f"has {vocab_size}"
        )
    if config.kind != "lm":
        if config.hidden_size != hidden_size:
            return (
                f"{drafter}: reads hidden states of {config.hidden_size} values, the target "
                f"{target} has {hidden_size}"
            )
        if config.num_target_layers not in (0, layers):
            return (
                f"{drafter}: was made for a target of {config.num_target_layers} layers, "
                f"{target} has {layers}"
            )
        if config.target_layer_ids[-1] >= layers:
            return (
                f"{drafter}: taps layer {config.target_layer_ids[-1]}, the target {target} has "
                f"{layers} layers"
            )
    return _tokenizers_differ(drafter, target)


def tokenizer_digest(folder: Path) -> str:
    """Hash of what token ids mean; empty for a folder without a tokenizer."""
    ids = token_ids(folder)
    return hashlib.sha256(json.dumps(ids, sort_keys=True).encode()).hexdigest()[:16] if ids else ""


def _tokenizers_differ(drafter: Path, target: Path) -> str | None:
    """A sentence about the first id that the two tokenizers read differently, or None. Ids of one
    side alone do not count; released drafters have no tokenizer, their ids are the target's."""
    mine, theirs = (
        {at: token for token, at in token_ids(folder).items()} for folder in (drafter, target)
    )
    at = min((at for at in mine.keys() & theirs.keys() if mine[at] != theirs[at]), default=None)
    if at is None:
        return None
    return (
        f"{drafter}: its tokenizer is not the one of {target}: token {at} is {mine[at]!r} "
        f"there and {theirs[at]!r} here"
    )


def token_ids(folder: Path) -> dict[str, int]:
    """Token -> id of a folder's tokenizer.json, added ones included; empty without such a file."""
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return {}
    try:
        raw = read_json_file(path, most=MOST_LISTING_BYTES)
        vocab = raw["model"].get("vocab") or {}
        if isinstance(vocab, list):  # pairs of a piece and its score, in the order of the ids
            vocab = {piece: at for at, (piece, _) in enumerate(vocab)}
        added = {entry["content"]: entry["id"] for entry in raw.get("added_tokens") or ()}
        return {str(token): int(at) for token, at in (vocab | added).items()}
    except (OSError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: not readable as a tokenizer ({error!r})") from error
