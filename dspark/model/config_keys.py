"""Reads a checkpoint's JSON files, limited in size and depth and without duplicate names, and looks
up typed values.

Every complaint names the key and shows the value.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from dspark.errors import CheckpointError, in_short

CONFIG_NAME = "config.json"
MOST_LAYERS = 1024
_LARGEST_DIMENSION = 1 << 24  # keeps products of two dimensions far from overflow
MOST_SETTINGS_BYTES = 4 << 20  # of config.json and its like
MOST_LISTING_BYTES = 64 << 20  # of files that list a vocabulary or every weight
_SHOWN = 8  # names listed per complaint


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; CheckpointError where there is none."""
    try:
        raw = read_json_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: expected a JSON object, found {show(raw)}")
    return raw


class Keys:
    """Typed look-ups in one JSON object; a missing or wrong value is a CheckpointError."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw

    def count(
        self,
        key: str,
        *,
        default: int | None = None,
        least: int = 1,
        most: int = _LARGEST_DIMENSION,
    ) -> int:
        value = self._get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise CheckpointError(
                f"{key}: expected an integer from {least} to {most}, found {show(value)}"
            )
        return value

    def positive(self, key: str, *, default: float | None = None) -> float:
        return positive(key, self._get(key, default))

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f"{key}: expected true or false, found {show(value)}")
        return value

    def must_equal(self, key: str, wanted: object, *, absent_is_fine: bool = False) -> None:
        value = self.raw.get(key)
        if value != wanted and not (value is None and absent_is_fine):
            raise CheckpointError(f"{key}: expected {show(wanted)}, found {show(value)}")

    def layer_ids(self, key: str, *, least: int, layers: int) -> tuple[int, ...]:
        """Ascending layer ids from `least` to `layers` - 1; 0 layers means that the depth is
        unknown."""
        layers = layers or MOST_LAYERS
        value = self.raw.get(key)
        fits = (
            isinstance(value, list)
            and bool(value)
            and all(type(i) is int and least <= i < layers for i in value)
            and all(a < b for a, b in itertools.pairwise(value))
        )
        if not fits:
            raise CheckpointError(
                f"{key}: expected ascending layer ids from {least} to {layers - 1}, found "
                f"{show(value)}"
            )
        return tuple(cast(list[int], value))

    def dtype(self) -> str:
        value = self.raw.get("dtype", self.raw.get("torch_dtype", "bfloat16"))
        if value not in ("float32", "bfloat16", "float16"):
            raise CheckpointError(f"dtype: expected a floating type, found {show(value)}")
        return cast(str, value)

    def _get(self, key: str, default: object) -> object:
        # An explicit null counts as absent: that is how the format writes "not set".
        value = self.raw.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{key}: missing")
        return default if value is None else value


def text_keys(raw: dict[str, Any]) -> Keys:
    """The keys of a target's text settings, which multimodal configs nest in `text_config`."""
    nested = raw.get("text_config")
    return Keys(nested if isinstance(nested, dict) and nested else raw)


def positive(key: str, value: object) -> float:
    """The value as a finite number above 0."""
    return _number(key, value, "positive", least=math.ulp(0.0))


def finite(key: str, value: object) -> float:
    """The value as a number that is not infinite or NaN."""
    return _number(key, value, "finite", least=-sys.float_info.max)


def _number(key: str, value: object, kind: str, *, least: float) -> float:
    if (
        isinstance(value, int | float)
        and type(value) is not bool
        and least <= value <= sys.float_info.max
    ):
        return float(value)
    raise CheckpointError(f"{key}: expected a {kind} number, found {show(value)}")


def show(value: object) -> str:
    """A value as JSON for a complaint, cut to 120 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."


def read_json_file(path: Path, *, most: int = MOST_SETTINGS_BYTES) -> Any:
    """The decoded content of a JSON file. Raises FileNotFoundError when there is no such file, else
    CheckpointError."""
    try:
        found = path.stat()
        if not path.is_file():  # a pipe would block, a device never end
            raise CheckpointError(f"{path}: not a regular file")
        if found.st_size > most:
            raise CheckpointError(f"{path}: {found.st_size} bytes, more than {most}")
        return decode(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON ({in_short(error)})") from error


def decode(data: bytes) -> Any:
    """Decodes one JSON text. Raises ValueError, or RecursionError where it is nested too deeply."""
    return json.loads(data, object_pairs_hook=_unique)


def listed(found: list[str]) -> str:
    """The first few names for a message, and how many more there are."""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more


def refuse(where: object, complaints: Mapping[str, list[str]]) -> None:
    """Raises one CheckpointError of all complaints and the names they concern, if there are any."""
    if found := [f"{what}: {listed(names)}" for what, names in complaints.items() if names]:
        raise CheckpointError(f"{where}: {'; '.join(found)}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen = dict(pairs)
    if len(seen) != len(pairs):
        twice = sorted(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
        raise ValueError(f"duplicate name {listed(twice)}")
    return seen
