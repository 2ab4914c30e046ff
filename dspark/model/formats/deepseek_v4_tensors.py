"""The tensors of the DSpark module inside a DeepSeek-V4 checkpoint, `mtp.*`.

Other releases of the family have other modules under the same prefix: a classic multi-token-prediction module, or that
of DeepSeek-V4.1. Tensors tell them apart, and both are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config_keys import show
from dspark.model.formats.deepseek_v4 import ENDS, MARKOV, PREFIX
from dspark.model.formats.quantised import with_scales
from dspark.model.weights_file import TensorEntry

_CLASSIC, _NEXT = "enorm.weight", "markov_head.embed.weight"


def module_entries(entries: Mapping[str, TensorEntry], stages: int) -> dict[str, TensorEntry]:
    """The module's tensors and both tables, quantised ones as their values. Raises for modules of another kind."""
    mine = {name: entry for name, entry in entries.items() if name.startswith(PREFIX)}
    if any(name.endswith(_NEXT) for name in mine):
        raise UnsupportedFamily(f"{PREFIX}*.{_NEXT}: this is the drafter of DeepSeek-V4.1: not supported")
    if f"{PREFIX}{stages - 1}.{MARKOV}" not in mine:
        if any(name.endswith(_CLASSIC) for name in mine):
            raise UnsupportedFamily(
                f"{PREFIX}*.{_CLASSIC}: this checkpoint holds a classic multi-token-prediction module, not DSpark's"
            )
        held = sorted({int(at[1]) for name in mine if (at := re.match(r"mtp\.(\d+)\.", name))})
        raise CheckpointError(
            f"no {PREFIX}{stages - 1}.{MARKOV}; stages that are there: {show(held) if held else 'none'}"
        )
    tables = {name: entries[name] for name in _stored_tables(entries)}
    return with_scales(mine | tables)


def _stored_tables(entries: Mapping[str, TensorEntry]) -> Iterable[str]:
    return (name for name in ENDS.values() if name in entries)
