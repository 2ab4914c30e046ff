"""Checkpoint formats of drafters: each is converted to the released format, which loaders read."""

from __future__ import annotations

from typing import Any

from dspark.model.formats import nested, speculators


def released(raw: dict[str, Any]) -> dict[str, Any]:
    """Converts any drafter's config.json to the released keys. Raises CheckpointError or
    UnsupportedFamily."""
    if speculators.is_speculators(raw):
        return speculators.to_released(raw)
    return nested.to_released(raw) if nested.is_nested(raw) else raw
