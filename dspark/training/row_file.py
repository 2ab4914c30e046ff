"""A growing file of rows, one JSON object a line, that survives being killed at any byte.

A row is there when its line break is. What a killed writer left after the last one is cut off when the file is opened
again, and `append` returns only when its rows are on the disk, so a row that was reported is never lost. One writer at
a time: a second one is refused, since two would double rows.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dspark.errors import ConfigError
from dspark.training.disk import sync_folder

_CHUNK = 1 << 16


class RowFile:
    """The writer's side; a context manager that holds the file's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise ConfigError(f"{path}: another process is writing this file") from None
        self.cut_off = _cut_tail(self._file.fileno())  # bytes of a row that never was complete
        sync_folder(path.parent)  # the file's name, too, has to survive

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes the rows in order; they are on the disk on return."""
        if not rows:
            return
        self._file.write(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """All complete rows in order; a torn last line is left out. ConfigError names a line that is no JSON object."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    try:  # a file of another's making may end without a line break
                        row = json.loads(line)
                    except ValueError:
                        return
                elif not line.strip():
                    continue
                else:
                    try:
                        row = json.loads(line)
                    except ValueError as error:
                        raise ConfigError(f"{path}:{number}: not JSON ({error})") from None
                if not isinstance(row, dict):
                    raise ConfigError(f"{path}:{number}: expected a JSON object")
                yield row
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _cut_tail(descriptor: int) -> int:
    """Truncates after the last line break; returns how many bytes went."""
    end = os.fstat(descriptor).st_size
    place = end
    while place > 0:
        start = max(0, place - _CHUNK)
        chunk = os.pread(descriptor, place - start, start)
        found = chunk.rfind(b"\n")
        if found >= 0:
            place = start + found + 1
            break
        place = start
    if place < end:
        os.ftruncate(descriptor, place)
        os.fsync(descriptor)
    return end - place
