"""A drafter's folder without the tables that are copies of its target's: the same drafts from a smaller file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from dspark.errors import CheckpointError
from dspark.model.calibration import FILE_NAME as CALIBRATION_NAME
from dspark.model.config import CONFIG_NAME
from dspark.model.config_file import read_drafter_config
from dspark.model.config_keys import read_json
from dspark.model.config_layers import NEIGHBOURS
from dspark.model.formats.source import SHARED, open_source, target_tables
from dspark.model.location import locate
from dspark.model.weights_file import SINGLE_NAME, read_tensors


def without_tables(folder: Path, out: Path, *, target: str | Path, dtype: torch.dtype | None = None) -> None:
    """Writes `out` in the format of `folder`. CheckpointError, and nothing is written, where a table is not a copy.

    `dtype`: what the other tensors are rounded to; None: they stay as they are.
    """
    config, theirs = read_drafter_config(folder), locate(target)
    entries, vocabulary = open_source(folder, config, target=lambda: theirs)
    tables = [name for name in SHARED if name in entries and entries[name].file.parent == folder]
    if config.kind == "lm" or not tables:
        raise CheckpointError(f"{folder}: holds no table that could be the target's")
    mine, its = dict(read_tensors(entries, tables)), dict(read_tensors(target_tables(theirs), tables))
    if vocabulary is not None and SHARED[1] in its:
        its[SHARED[1]] = its[SHARED[1]][vocabulary.target_ids]
    for name in tables:
        if not torch.equal(mine[name].float(), its[name].float()):
            raise CheckpointError(f"{folder}: {name} is not the one of {theirs}, it cannot be left out")
    settings = {key: value for key, value in read_json(folder / CONFIG_NAME).items() if key not in NEIGHBOURS}
    kept = dict(read_tensors(entries, sorted(name for name in entries if name not in SHARED)))
    if dtype is not None:
        kept = {name: tensor.to(dtype) for name, tensor in kept.items()}
        settings["dtype"] = str(dtype).removeprefix("torch.")
    out.mkdir(parents=True, exist_ok=True)
    (out / CONFIG_NAME).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    maps = {} if vocabulary is None else vocabulary.maps()
    save_file(kept | maps, out / SINGLE_NAME, metadata={"format": "pt"})
    if (folder / CALIBRATION_NAME).is_file():
        shutil.copyfile(folder / CALIBRATION_NAME, out / CALIBRATION_NAME)
