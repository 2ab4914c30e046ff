"""Decode cases: whole greedy runs through both engines and the coordinator's threshold policy."""

from __future__ import annotations

from pathlib import Path

from dspark.model.drafter import BlockDrafter


def decode_cases(file: Path, *, drafter: BlockDrafter, target_folder: Path | None) -> list[str | None]:
    """One entry per case: None, or what differs."""
    raise NotImplementedError("decode cases need the engines")
