"""DeepSeek-V4 drafters live inside their target's checkpoint and are not built here: they are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dspark.errors import UnsupportedFamily


def refuse(raw: Mapping[str, Any]) -> None:
    """Raises UnsupportedFamily for a config.json of that family, bundled with a target or on its own."""
    names = raw.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    words = (name, str(raw.get("model_type", "")), str(raw.get("speculators_model_type", "")))
    mine = any("deepseek" in word.lower() or "dsv4" in word.lower() for word in words)
    if mine or any(str(key).startswith("dspark_") for key in raw):
        said = next((word for word in words if word), "dspark_* keys")
        raise UnsupportedFamily(
            f"this is a DeepSeek-V4 drafter ({said}: mixture-of-experts stages mtp.* inside the target's checkpoint); "
            "that family is not supported"
        )
