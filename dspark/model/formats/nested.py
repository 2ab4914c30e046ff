"""Converts configs of trainers that nest a drafter's own settings in `dflash_config` to the
released keys.

Layers are Qwen3's, with keys at the top level. Tap ids are layer ids, and the tables are mostly
left to the target. In files of the projector `dspark` every slot of a block drafts, the anchor's
too; in those of the original DFlash, which are older, masks alone draft, each its own position, so
a block drafts one token less. Pure: JSON objects in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.errors import CheckpointError, UnsupportedFamily
from dspark.model.config_keys import Keys

KEY = "dflash_config"
_PROJECTORS = ("dflash", "dspark")
_LIFTED = (
    "target_layer_ids",
    "mask_token_id",
    "num_target_layers",
    "block_size",
    "markov_rank",
    "markov_head_type",
)


def is_nested(raw: Mapping[str, Any]) -> bool:
    """Whether a decoded config.json is of this format."""
    return KEY in raw


def to_released(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The released keys of such a config; every complaint names the key."""
    inner = Keys({**raw}).inside(KEY).raw
    if (projector := inner.get("projector_type", "dflash")) not in _PROJECTORS:
        raise UnsupportedFamily(f"{KEY}.projector_type: {projector!r} drafters are not supported")
    said = {key: value for key, value in raw.items() if key != KEY}
    for key in _LIFTED:
        if inner.get(key) is None:
            continue
        if said.get(key) not in (None, inner[key]):
            raise CheckpointError(f"{KEY}.{key}: {inner[key]!r}, and {said[key]!r} beside it")
        said[key] = inner[key]
    size = said.get("block_size")
    if "sample_from_anchor" not in said and not inner.get("shift_label", projector == "dspark"):
        drafted = {"block_size": size - 1} if isinstance(size, int) else {}
        said |= {"sample_from_anchor": False, **drafted}
    return {"num_target_layers": 0, **said}
