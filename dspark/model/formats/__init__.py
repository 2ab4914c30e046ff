"""Checkpoint formats: whatever a drafter's folder looks like, loaders see the released format."""

from __future__ import annotations

from typing import Any

from dspark.model.formats import speculators


def released(raw: dict[str, Any]) -> dict[str, Any]:
    """The released key set of any config.json of a drafter. Raises CheckpointError or UnsupportedFamily."""
    return speculators.to_released(raw) if speculators.is_speculators(raw) else raw
