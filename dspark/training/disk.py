"""Files that are there whole or not at all, and stay when the machine stops."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_whole(path: Path, content: str) -> None:
    """Puts a small text file in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    with partial.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    _move(partial, path)


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Puts a safetensors file in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    save_file(dict(tensors), partial, metadata=dict(metadata) if metadata else None)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    _move(partial, path)


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _move(partial: Path, path: Path) -> None:
    partial.replace(path)
    sync_folder(path.parent)
