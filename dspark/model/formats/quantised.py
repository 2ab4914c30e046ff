"""The tensors of the DSpark module inside a DeepSeek-V4 checkpoint, `mtp.*`, with quantised ones as
their values.

A scale has the weight's name with `.scale` for `.weight`. Other releases of the family have other
modules under the same prefix: a classic multi-token-prediction module, or that of DeepSeek-V4.1.
Tensors tell them apart, and both are refused by name.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config_keys import show
from dspark.model.formats.deepseek_v4 import ENDS, MARKOV, PREFIX
from dspark.model.weights_file import ROW, SQUARE, TensorEntry

_BYTES = ("I8", "U8")
_FACTORS = ("F8_E8M0", "F64", "F32", "F16", "BF16")
_CLASSIC, _NEXT = "enorm.weight", "markov_head.embed.weight"


def with_scales(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The entries without scales; those of scaled weights describe the dequantised values."""
    scales = {
        name: entry
        for name, entry in entries.items()
        if name.endswith(".scale") and _weight(name) in entries
    }
    made = {name: entry for name, entry in entries.items() if name not in scales}
    for name, scale in scales.items():
        weight = _weight(name)
        made[weight] = _valued(weight, entries[weight], scale)
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
            raise CheckpointError(
                f"{name}: {columns} four-bit values a row, not a multiple of {ROW}"
            )
    elif entry.dtype == "F8_E4M3":
        blocks = (-(-rows // SQUARE), -(-columns // SQUARE))
    else:
        raise CheckpointError(f"{name}: a scale beside {entry.dtype} values")
    if scale.dtype not in _FACTORS:  # bytes may be numbers or exponents
        raise CheckpointError(f"{name}: scales are {scale.dtype}, none of {', '.join(_FACTORS)}")
    if scale.shape != blocks:
        raise CheckpointError(f"{name}: scales {list(scale.shape)} instead of {list(blocks)}")
    return dataclasses.replace(entry, dtype="BF16", shape=(rows, columns), scale=scale)


def module_entries(entries: Mapping[str, TensorEntry], stages: int) -> dict[str, TensorEntry]:
    """The module's tensors and both tables, quantised ones as their values. Raises for modules of
    another kind."""
    mine = {name: entry for name, entry in entries.items() if name.startswith(PREFIX)}
    if any(name.endswith(_NEXT) for name in mine):
        raise UnsupportedFamily(
            f"{PREFIX}*.{_NEXT}: this is the drafter of DeepSeek-V4.1: not supported"
        )
    if f"{PREFIX}{stages - 1}.{MARKOV}" not in mine:
        if any(name.endswith(_CLASSIC) for name in mine):
            raise UnsupportedFamily(
                f"{PREFIX}*.{_CLASSIC}: this checkpoint holds a classic multi-token-prediction "
                "module, not DSpark's"
            )
        held = sorted({int(at[1]) for name in mine if (at := re.match(r"mtp\.(\d+)\.", name))})
        raise CheckpointError(
            f"no {PREFIX}{stages - 1}.{MARKOV}; stages that are there: "
            f"{show(held) if held else 'none'}"
        )
    return with_scales(mine | {name: entries[name] for name in ENDS.values() if name in entries})
