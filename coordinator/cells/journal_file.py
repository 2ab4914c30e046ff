"""The journal's files: append-only segments, one written at a time, of bounded size.

A record is written to the operating system before `append` returns, so it survives any end of this
process. `sync` sets when it reaches the disk and survives the end of the machine: "always" before
`append` returns, "interval" within `sync_s`, from a thread. When a segment is full, the next one
begins with the records still in use, is put in place whole or not at all, and replaces the old one,
so a folder never holds more than two segments. A segment may grow to twice the size it began with:
one that began nearly full would otherwise be rewritten with every record. Files of another format,
which another version of the software may need, are logged and left. One process writes a folder at
a time. See ADR 23.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog

from dspark.errors import ConfigError
from dspark.whole_file import locked, placed, remove_partial

log = structlog.get_logger("dspark.journal")

MAGIC = b"DSPKJNL3"
_HEAD = struct.Struct("<II")
_NAMES = f"journal-{'[0-9]' * 12}.log"


class JournalFile:
    """Records of bytes in `folder`: call `read` once, then `begin`, then `append`. The constructor
    raises ConfigError, the methods raise OSError."""

    def __init__(self, folder: Path, *, sync: str, sync_s: float, segment_bytes: int) -> None:
        self._folder, self._sync, self.segment_bytes = folder, sync, segment_bytes
        self._number, self._size, self._begun, self._descriptor = 0, 0, 0, -1
        self._unsynced = False
        self._not_synced: OSError | None = None  # raised by the next `append`
        with ExitStack() as undone:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
                undone.callback(os.close, self._lock)
                free = locked(self._lock)
            except OSError as error:
                raise ConfigError(f"coordinator.journal: {folder}: {error.strerror}") from error
            if not free:
                raise ConfigError(f"coordinator.journal: another coordinator writes {folder}")
            undone.pop_all()
        self._ending = threading.Event()
        self._syncing = threading.Thread(
            target=self._sync_now_and_then, args=(sync_s,), name="journal", daemon=True
        )
        if sync == "interval":
            self._syncing.start()

    @property
    def full(self) -> bool:
        """Whether the segment has reached `segment_bytes`, and twice the size it began with."""
        return self._size >= max(self.segment_bytes, 2 * self._begun)

    def read(self) -> Iterator[bytes]:
        """Yields every whole record of earlier processes, oldest first."""
        for path in self._segments():
            self._number = max(self._number, int(path.stem.split("-")[1]))
            if _is_segment(path):
                yield from _records(path)
            else:
                log.warning("journal.other_format", file=path.name)

    def begin(self, records: Sequence[bytes]) -> None:
        """Starts a segment with these records; deletes older segments once it is on the disk."""
        old = [path for path in self._segments() if _is_segment(path)]
        self._number += 1
        path = self._folder / f"journal-{self._number:012d}.log"
        content = MAGIC + b"".join(map(_framed, records))
        with placed(path, mode=0o600, lasts=True) as draft:
            draft.write_bytes(content)
        before, self._descriptor = self._descriptor, os.open(path, os.O_WRONLY | os.O_APPEND)
        self._size = self._begun = len(content)
        if before >= 0:
            os.close(before)
        for each in old:
            each.unlink(missing_ok=True)

    def append(self, record: bytes) -> None:
        if self._not_synced is not None:
            raise self._not_synced
        content = _framed(record)
        _write(self._descriptor, content)
        self._size += len(content)
        if self._sync == "always":
            os.fdatasync(self._descriptor)
        else:
            self._unsynced = True

    def close(self) -> None:
        """Writes everything appended to the disk and closes the files, also where that fails."""
        self._ending.set()
        if self._syncing.is_alive():
            self._syncing.join(timeout=5)
        with ExitStack() as files:
            files.callback(os.close, self._lock)
            if self._descriptor >= 0:
                files.callback(os.close, self._descriptor)
                os.fsync(self._descriptor)

    def _segments(self) -> list[Path]:
        remove_partial(self._folder / _NAMES)  # of a process that was killed
        return sorted(self._folder.glob(_NAMES))

    def _sync_now_and_then(self, every_s: float) -> None:
        while not self._ending.wait(every_s):
            if self._unsynced:
                self._unsynced = False
                try:
                    os.fdatasync(self._descriptor)
                except OSError as error:
                    # these two: a segment that was closed meanwhile was synced as a whole
                    if error.errno not in (errno.EBADF, errno.EINVAL):
                        self._not_synced = error


def _framed(record: bytes) -> bytes:
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _is_segment(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _records(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    at = len(MAGIC)
    while len(head := content[at : at + _HEAD.size]) == _HEAD.size:
        length, checksum = _HEAD.unpack(head)
        begins = at + _HEAD.size
        at = begins + length
        record = content[begins:at]
        if len(record) != length or zlib.crc32(record) != checksum:
            log.warning("journal.cut_off", file=path.name, at=begins)
            return
        yield record
