"""Reads GGUF files: settings and a table of tensors, every length checked against the file's size.

Little-endian files of version 2 and 3. The values of tensors are read by `gguf`'s own
dequantization (`values`), in float32.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dspark.errors import CheckpointError, in_short

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_TENSORS = 100_000
MAX_SETTINGS = 10_000
MAX_ELEMENTS = 1 << 22  # of one setting; the largest vocabularies have some 500,000 merges
MAX_DIMENSIONS = 4
ALIGNMENT = 32  # of tensors, where the file names none
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of the table."""

    shape: tuple[int, ...]  # slowest dimension first, as torch has it
    kind: int  # ggml's number of the storage format
    start: int  # byte of the file
    size: int  # bytes


class GgufFile:
    """An open GGUF file, a context manager: `settings` are its key-value pairs, `tensors` its table
    by name. Raises CheckpointError."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._bytes = _mapped(self.path)
        try:
            self.settings, self.tensors = _read(self._bytes)
        except CheckpointError as error:
            self._bytes.close()
            raise CheckpointError(f"{self.path}: {error}") from error
        except (struct.error, UnicodeDecodeError) as error:
            self._bytes.close()
            raise CheckpointError(f"{self.path}: not readable as GGUF ({error})") from error

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bytes.close()

    def values(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Dequantised float32 values of a tensor, in its shape."""
        from gguf import GGMLQuantizationType, dequantize

        tensor = self.tensors[name]
        raw = np.frombuffer(self._bytes[tensor.start : tensor.start + tensor.size], np.uint8)
        kind = GGMLQuantizationType(tensor.kind)
        try:
            rows = raw.reshape(*tensor.shape[:-1], -1)
            values: np.ndarray[Any, np.dtype[np.float32]] = dequantize(rows, kind)
        except NotImplementedError as error:
            raise CheckpointError(f"{name}: no way to read {kind.name} values") from error
        return values.reshape(tensor.shape)


def _take(data: mmap.mmap, size: int) -> bytes:
    """The next bytes; CheckpointError beyond the end."""
    if size > len(data) - data.tell():
        raise CheckpointError(f"ends at byte {len(data)}, inside its header: truncated")
    return data.read(size)


def _unpack(data: mmap.mmap, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", _take(data, struct.calcsize(f"<{form}")))


def _text(data: mmap.mmap) -> str:
    return _take(data, *_unpack(data, "Q")).decode("utf-8")


def _value(data: mmap.mmap, kind: int, *, inside: bool = False) -> Any:
    if kind in _SCALARS:
        return _unpack(data, _SCALARS[kind])[0]
    if kind == _STRING:
        return _text(data)
    if kind != _ARRAY or inside:
        raise CheckpointError(f"a setting of type {kind}, which is not known")
    of, count = _unpack(data, "IQ")
    if count > MAX_ELEMENTS:
        raise CheckpointError(f"a setting of {count} values, more than {MAX_ELEMENTS}")
    if of in _SCALARS:
        return list(_unpack(data, f"{count}{_SCALARS[of]}"))
    return [_value(data, of, inside=True) for _ in range(count)]


def _mapped(path: Path) -> mmap.mmap:
    try:
        if path.exists() and not path.is_file():  # reading a pipe would block
            raise CheckpointError(f"{path}: not a regular file")
        with path.open("rb") as stream:
            if stream.read(len(MAGIC)) != MAGIC:
                raise CheckpointError(
                    f"{path}: no GGUF file: it does not begin with {MAGIC.decode()}"
                )
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({in_short(error)})") from error


def _read(data: mmap.mmap) -> tuple[dict[str, Any], dict[str, Tensor]]:
    _take(data, len(MAGIC))
    (version,) = _unpack(data, "I")
    if version not in VERSIONS:
        raise CheckpointError(
            f"GGUF version {version}; {' and '.join(map(str, VERSIONS))} are read, little-endian"
        )
    count, keys = _unpack(data, "QQ")
    if count > MAX_TENSORS or keys > MAX_SETTINGS:
        raise CheckpointError(
            f"{count} tensors and {keys} settings; more than {MAX_TENSORS} and {MAX_SETTINGS}"
        )
    settings: dict[str, Any] = {}
    for _ in range(keys):
        key = _text(data)
        if key in settings:
            raise CheckpointError(f"{key}: there twice")
        settings[key] = _value(data, *_unpack(data, "I"))
    table = [_entry(data) for _ in range(count)]
    alignment = settings.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise CheckpointError(f"general.alignment: {alignment!r} is no power of two")
    return settings, _placed(table, data.tell(), alignment, len(data))


def _entry(data: mmap.mmap) -> tuple[str, tuple[int, ...], int, int]:
    name = _text(data)
    (dimensions,) = _unpack(data, "I")
    if dimensions > MAX_DIMENSIONS:
        raise CheckpointError(f"{name}: {dimensions} dimensions, more than {MAX_DIMENSIONS}")
    shape = _unpack(data, f"{dimensions}Q")
    kind, offset = _unpack(data, "IQ")
    return name, shape[::-1], kind, offset


def _placed(
    table: list[tuple[str, tuple[int, ...], int, int]], header: int, alignment: int, end: int
) -> dict[str, Tensor]:
    """The table with byte offsets; CheckpointError unless tensors lie one behind the other in the
    file."""
    tensors: dict[str, Tensor] = {}
    start = place = -(-header // alignment) * alignment
    for name, shape, kind, offset in table:
        if name in tensors:
            raise CheckpointError(f"{name}: there twice")
        size = _size(name, shape, kind)
        if start + offset + size > end:
            raise CheckpointError(
                f"{name} ends at byte {start + offset + size}, the file at {end}: truncated"
            )
        if start + offset != place:
            raise CheckpointError(
                f"{name} begins at byte {start + offset}, the tensor before it ends at {place}"
            )
        tensors[name] = Tensor(shape, kind, place, size)
        place += -(-size // alignment) * alignment
    return tensors


def _size(name: str, shape: tuple[int, ...], kind: int) -> int:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        per_block, bytes_of_block = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{name}: storage format {kind} is not known") from error
    elements = math.prod(shape)
    if not shape or not elements or shape[-1] % per_block:
        raise CheckpointError(f"{name}: {list(shape)} cannot be stored in blocks of {per_block}")
    return elements // int(per_block) * int(bytes_of_block)
