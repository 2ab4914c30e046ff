"""Finds the folder of a name or path on this machine: a path, a target to import, or a hub id and
revision."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from dspark.errors import CheckpointError, in_short
from dspark.targets import imported, is_imported

# Files that a loader may read: settings, tokenizer files, weights. Never code, never pickles.
_WEIGHTS = "*.safetensors"
_WANTED = ["*.json", _WEIGHTS, "*.jinja", "*.txt", "*.model"]
# Copies of the weights in the formats of other programs, which take as long to fetch.
_COPIES = ["*/*.safetensors", "consolidated*"]


def locate(name_or_path: str | Path, *, revision: str | None = None, weights: bool = True) -> Path:
    """The folder of a name or path: an existing folder, else an imported GGUF file or known name,
    else a hub id, from the cache when offline. Raises CheckpointError."""
    folder = Path(os.path.expanduser(name_or_path))
    if os.path.isdir(folder):  # False for a name that is too long
        return folder
    if is_imported(name_or_path):
        return imported(name_or_path)
    from huggingface_hub import snapshot_download  # slow to import, and rarely needed
    from huggingface_hub.errors import HFValidationError

    logging.getLogger("huggingface_hub").handlers.clear()  # the root's writes its lines, too
    try:
        wanted = _WANTED if weights else [pattern for pattern in _WANTED if pattern != _WEIGHTS]
        return Path(
            snapshot_download(
                str(name_or_path),
                revision=revision,
                allow_patterns=wanted,
                ignore_patterns=_COPIES,
            )
        )
    except HFValidationError as error:
        raise CheckpointError(f"{name_or_path}: no such folder, and no hub id either") from error
    except Exception as error:
        # The hub client raises its own, its transport's and plain OS errors.
        at = f" at revision {revision}" if revision else ""
        raise CheckpointError(
            f"{name_or_path}{at}: neither a folder nor to be had from the hub or its cache "
            f"({type(error).__name__}: {in_short(error)})"
        ) from error
