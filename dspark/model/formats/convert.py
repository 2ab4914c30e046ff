"""Rewrites a drafter's folder in the speculators format: the same drafts from other files.

Optionally the tables that are the target's are left out, or the head is cut to some tokens, which
changes how often a draft is accepted and never what is accepted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.calibration import FILE_NAME as CALIBRATION_NAME
from dspark.model.config import CONFIG_NAME
from dspark.model.config_file import config_to_json, read_drafter_config
from dspark.model.config_keys import read_json
from dspark.model.config_layers import NEIGHBOURS
from dspark.model.formats import speculators
from dspark.model.formats.source import SHARED, open_source, target_tables
from dspark.model.formats.vocabulary import DraftVocabulary
from dspark.model.location import locate
from dspark.model.pairing import TOKENIZER_NAME
from dspark.model.weights_file import SINGLE_NAME, check_finite, read_tensors, write_file

_SAID = ("lm_head.weight", "markov_head.markov_w2.weight")  # a row per draftable token


def to_speculators(
    folder: Path,
    out: Path,
    *,
    verifier: str | None = None,
    share_tables: bool = False,
    keep_tokens: Sequence[int] | None = None,
) -> None:
    """Writes `out`. `verifier`: the target's name; `keep_tokens`: target ids that the head is cut
    to."""
    config = read_drafter_config(folder)
    if config.family not in speculators.FAMILIES:
        raise UnsupportedFamily(
            f"{folder}: {config.family} drafters have no form in the speculators format"
        )
    entries, vocabulary = open_source(folder, config)
    if vocabulary is not None:
        raise CheckpointError(f"{folder}: the head is cut already")
    raw = config_to_json(config)
    left_out = set(SHARED) if share_tables else set[str]()
    maps: dict[str, Tensor] = {}
    rows = None
    if keep_tokens is not None:
        vocabulary = DraftVocabulary.of(keep_tokens, config.vocab_size)
        rows, maps = vocabulary.target_ids, vocabulary.maps()
        raw["draft_vocab_size"] = len(rows)
        left_out.discard(SHARED[1])
    tensors = {
        name: tensor.index_select(0, rows) if rows is not None and name in _SAID else tensor
        for name, tensor in read_tensors(entries, sorted(entries.keys() - left_out))
    }
    _write(
        out,
        speculators.from_released(raw, family=config.family, verifier=verifier),
        tensors | maps,
        folder,
    )


def without_tables(
    folder: Path, out: Path, *, target: str | Path, dtype: torch.dtype | None = None
) -> None:
    """Writes `out` in the format of `folder`, without the target's tables. CheckpointError, and
    nothing is written, where a table is not a copy of the target's.

    `dtype`: what the other tensors are rounded to; None: they stay as they are.
    """
    config, theirs = read_drafter_config(folder), locate(target)
    entries, vocabulary = open_source(folder, config, target=lambda: theirs)
    tables = [name for name in SHARED if name in entries and entries[name].file.parent == folder]
    if config.kind == "lm" or not tables:
        raise CheckpointError(f"{folder}: holds no table that could be the target's")
    mine, its = (
        dict(read_tensors(entries, tables)),
        dict(read_tensors(target_tables(theirs), tables)),
    )
    if vocabulary is not None and len(its.get(SHARED[1], ())) == config.vocab_size:
        its[SHARED[1]] = its[SHARED[1]][vocabulary.target_ids]
    for name in tables:
        if not torch.equal(mine[name].float(), its[name].float()):
            raise CheckpointError(
                f"{folder}: {name} is not the one of {theirs}, it cannot be left out"
            )
    settings = _without_neighbours(read_json(folder / CONFIG_NAME))
    kept = dict(read_tensors(entries, sorted(name for name in entries if name not in SHARED)))
    if dtype is not None:
        kept = {name: tensor.to(dtype) for name, tensor in kept.items()}
        settings["dtype"] = str(dtype).removeprefix("torch.")
    _write(out, settings, kept | ({} if vocabulary is None else vocabulary.maps()), folder)


def _write(
    out: Path, settings: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path
) -> None:
    """Writes config, tensors and copies of calibration and tokenizer in `folder`, the source of all
    of it."""
    for name, tensor in tensors.items():  # rounding may have made infinities
        check_finite(f"{folder}: {name} as {str(tensor.dtype).removeprefix('torch.')}", tensor)
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG_NAME).write_text(
        json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8"
    )
    write_file(out / SINGLE_NAME, tensors, {"format": "pt"})
    for file in (CALIBRATION_NAME, TOKENIZER_NAME):  # what ties a drafter covers the latter
        if (folder / file).is_file():
            shutil.copyfile(folder / file, out / file)


def _without_neighbours(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for reordered tensors: without those of neighbouring pairs, nested ones too."""
    return {
        key: _without_neighbours(value) if isinstance(value, dict) else value
        for key, value in settings.items()
        if key not in NEIGHBOURS
    }
