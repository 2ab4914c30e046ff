"""Checkpoint formats: whatever a drafter's folder looks like, loaders see the released format."""

from __future__ import annotations

from typing import Any

from dspark.model.formats import nested, speculators


def released(raw: dict[str, Any]) -> dict[str, Any]:
    """The released key set of any config.json of a drafter. Raises CheckpointError or
    UnsupportedFamily."""
    if speculators.is_speculators(raw):
        return speculators.to_released(raw)
    return nested.to_released(raw) if nested.is_nested(raw) else raw
