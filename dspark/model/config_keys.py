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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from dspark.errors import CheckpointError, UnsupportedFamily, in_short

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
    """Typed look-ups in one JSON object; a missing or wrong value is a CheckpointError.

    An explicit null counts as absent: that is how the format writes "not set".
    """

    def __init__(self, raw: dict[str, Any], where: str = "") -> None:
        self.raw, self.where = raw, where  # where: what complaints say before a key

    def inside(self, key: str) -> Keys:
        """The keys of the object there."""
        value = self.raw.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return Keys(value, f"{self.where}{key}.")

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
            raise self.wrong(key, f"an integer from {least} to {most}", value)
        return value

    def positive(self, key: str, *, default: float | None = None) -> float:
        return positive(self.where + key, self._get(key, default))

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def must_equal(self, key: str, wanted: object) -> None:
        if (value := self.raw.get(key)) != wanted:
            raise self.wrong(key, show(wanted), value)

    def may_be_absent(self, wanted: Mapping[str, object]) -> None:
        """Raises UnsupportedFamily for another value of one of these keys."""
        for key, only in wanted.items():
            if (value := self.raw.get(key)) not in (None, only):
                raise UnsupportedFamily(
                    f"{self.where}{key}: {show(value)} is not supported, {show(only)} is"
                )

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
            raise self.wrong(key, f"ascending layer ids from {least} to {layers - 1}", value)
        return tuple(cast(list[int], value))

    def dtype(self, key: str) -> str:
        value = self.raw.get(key, self.raw.get(f"torch_{key}", "bfloat16"))
        if value not in ("float32", "bfloat16", "float16"):
            raise self.wrong(key, "a floating type", value)
        return cast(str, value)

    def _get(self, key: str, default: object) -> object:
        value = self.raw.get(key)
        if value is None and default is None:
            raise CheckpointError(f"{self.where}{key}: missing")
        return default if value is None else value

    def wrong(self, key: str, wanted: str, value: object) -> CheckpointError:
        """The complaint about a value."""
        return CheckpointError(f"{self.where}{key}: expected {wanted}, found {show(value)}")


class Key(NamedTuple):
    """How a field of a configuration is spelled in a file."""

    name: str
    read: Callable[..., Any]  # (keys, name, **bounds) -> value
    bounds: Mapping[str, Any]
    unless: object  # the value that is not written: the key's absence says it


Table = Mapping[str, Key]  # by field


def spelled(
    read: Callable[..., Any], *fields: str, key: str = "", unless: object = ..., **bounds: Any
) -> Table:
    """The table of fields that are read alike; `key`: the name in the file, where it differs."""
    return {field: Key(key or field, read, bounds, unless) for field in fields}


def read_fields(keys: Keys, table: Table) -> dict[str, Any]:
    """The fields of a table."""
    return {field: key.read(keys, key.name, **key.bounds) for field, key in table.items()}


def fields_to_json(config: object, table: Table) -> dict[str, Any]:
    """The keys of a table: `read_fields` of them gives the fields back."""
    found = ((key, getattr(config, field)) for field, key in table.items())
    return {
        key.name: list(value) if isinstance(value, tuple) else value
        for key, value in found
        if value != key.unless
    }


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
