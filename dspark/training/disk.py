"""Files that survive a crash: written whole or not at all, or grown by whole rows of JSON."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from dspark.errors import ConfigError
from dspark.whole_file import flush_to_disk, locked, placed

if TYPE_CHECKING:
    from torch import Tensor


def write_whole(path: Path, content: str) -> None:
    """Writes a small text file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with placed(path, lasts=True) as partial:
        partial.write_text(content, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Writes a small JSON file, whole or not at all."""
    write_whole(path, json.dumps(content, indent=2) + "\n")


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a safetensors file, whole or not at all."""
    from dspark.model.weights_file import write_file

    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, tensors, metadata, lasts=True)


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes a file of JSON rows, whole or not at all."""
    write_whole(path, "".join(map(_line, rows)))


def _line(row: Mapping[str, Any]) -> str:
    # half of a character, which UTF-8 does not have, stays JSON's escape of it
    return json.dumps(row, ensure_ascii=False).encode(errors="backslashreplace").decode() + "\n"


def check_folder(key: str, folder: Path | None) -> None:
    """Makes a folder for results; ConfigError for `key` unless files can be written there. Called
    before work that would be lost."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ConfigError(f"{key}: {folder} cannot be written: {error.strerror}") from None


def content_digest(path: Path) -> str:
    """Digest of a file's content: 16 hex digits of its SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def check_same_run(where: object, kept: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Checks that a run is resumed with the settings it began with. ConfigError names the first
    that differs."""
    for name, value in ours.items():
        if kept.get(name) != value:
            raise ConfigError(
                f"{name}: {where} was begun with {kept.get(name)!r}, not {value!r}; name another "
                "--out"
            )


@contextmanager
def row_file(path: Path, check: Callable[[], None] = lambda: None) -> Iterator[Callable[..., None]]:
    """Holds the lock of a file of JSON rows and yields what appends rows, which are on the disk
    when that returns. `check` raises where the file is another's, before anything is cut off it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        _lock(file, f"{path}: another process is writing this file")
        check()
        _cut_tail(file.fileno())
        flush_to_disk(path.parent)  # the file's name must survive a crash, too

        def append(*rows: Mapping[str, Any]) -> None:
            file.writelines(_line(row).encode() for row in rows)
            file.flush()
            os.fsync(file.fileno())

        yield append


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Holds a folder's lock; ConfigError if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        _lock(file, f"{folder}: another process is at work there")
        yield


def _lock(file: IO[bytes], otherwise: str) -> None:
    try:
        if locked(file.fileno()):
            return
    except OSError as error:
        raise ConfigError(f"{file.name}: cannot be locked: {error.strerror}") from None
    raise ConfigError(otherwise)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """All complete rows in order; a torn last line is left out. ConfigError names a line that is no
    JSON object."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    if not line.endswith(b"\n"):
                        # torn; one that parses is whole even without a line break
                        return
                    raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}:{number}: expected a JSON object")
                yield row
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _cut_tail(descriptor: int) -> None:
    """Cuts the file behind its last complete row."""
    end = os.fstat(descriptor).st_size
    if not end:  # an empty file cannot be mapped
        return
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
        whole = content.rfind(b"\n") + 1
    if whole < end:
        os.ftruncate(descriptor, whole)
        os.fsync(descriptor)
