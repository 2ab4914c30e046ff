"""Entries of quantised weights: told as the values they stand for, so that loaders need not know.

A scale stands under the weight's name with `.scale` for `.weight`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from dspark.errors import CheckpointError
from dspark.model.few_bits import ROW, SQUARE
from dspark.model.weights_file import TensorEntry

_BYTES = ("I8", "U8")


def with_scales(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The entries without their scales; weights that have one are told as what they stand for."""
    scales = {name: entry for name, entry in entries.items() if name.endswith(".scale") and _weight(name) in entries}
    made = {name: entry for name, entry in entries.items() if name not in scales}
    for name, scale in scales.items():
        weight = _weight(name)
        made[weight] = _valued(weight, entries[weight], dataclasses.replace(scale, stored=scale.stored or name))
    return made


def _weight(scale: str) -> str:
    return scale.removesuffix("scale") + "weight"


def _valued(name: str, entry: TensorEntry, scale: TensorEntry) -> TensorEntry:
    if len(entry.shape) != 2:
        raise CheckpointError(f"{name}: a scale beside {list(entry.shape)} values")
    rows, columns = entry.shape
    if entry.dtype in _BYTES:
        columns *= 2
        blocks = (rows, -(-columns // ROW))
        if columns % ROW:
            raise CheckpointError(f"{name}: {columns} four-bit values a row, not a multiple of {ROW}")
    elif entry.dtype == "F8_E4M3":
        blocks = (-(-rows // SQUARE), -(-columns // SQUARE))
    else:
        raise CheckpointError(f"{name}: a scale beside {entry.dtype} values")
    if scale.shape != blocks:
        raise CheckpointError(f"{name}: scales {list(scale.shape)} instead of {list(blocks)}")
    return dataclasses.replace(entry, dtype="BF16", shape=(rows, columns), scale=scale, stored=entry.stored or name)
