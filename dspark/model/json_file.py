"""JSON files of checkpoints: of ordinary size and depth, every name once; else refused."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from dspark.errors import CheckpointError

MOST_SETTINGS_BYTES = 4 << 20  # of config.json and its like
MOST_LISTING_BYTES = 64 << 20  # of files that list a vocabulary or every weight
_SHOWN = 8  # names listed per complaint


def read_json_file(path: Path, *, most: int = MOST_SETTINGS_BYTES) -> Any:
    """The decoded content. Raises FileNotFoundError when there is no such file, else CheckpointError."""
    try:
        found = path.stat()
        if not path.is_file():  # a pipe would be waited for, a device never end
            raise CheckpointError(f"{path}: not a regular file")
        if found.st_size > most:
            raise CheckpointError(f"{path}: {found.st_size} bytes, more than {most}")
        return decode(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error})") from error


def decode(data: bytes) -> Any:
    """One JSON text. Raises ValueError, or RecursionError where it is nested too deeply."""
    return json.loads(data, object_pairs_hook=_unique)


def listed(found: list[str]) -> str:
    """A few names for people, and how many more there are."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        twice = sorted(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise ValueError(f"duplicate name {listed(twice)}")
    return seen
