"""Atomic file writes: a reader finds the complete new file or the one before it."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def placed(path: Path, *, mode: int = 0o666, lasts: bool = False) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` after the block; removed if the block fails.

    mode: permissions of the file, before the umask. lasts: the file is flushed to disk, so that it
    survives a crash of the machine. OSError for a path of something else than a file.
    """
    if path.exists() and not path.is_file():  # a device would be gone for everybody
        raise FileExistsError(errno.EEXIST, "there already, and no regular file", str(path))
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    allowed = partial.stat().st_mode
    try:
        yield partial
        partial.chmod(allowed)  # safetensors puts a file of its own there, for its owner alone
        if lasts:
            flush_to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    if lasts:
        flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Flushes a file's content, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
