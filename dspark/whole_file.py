"""Atomic file writes: a reader finds the complete new file or the one before it; and locks."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspark.errors import ConfigError

_SUFFIX = "[0-9a-f]" * 16


@contextmanager
def placed(path: Path, *, mode: int = 0o666, lasts: bool = False) -> Iterator[Path]:
    """Yields a temporary path that replaces `path` after the block; removed if the block fails.

    mode: permissions of the file, before the umask. lasts: the file is flushed to disk, so that it
    survives a crash of the machine. OSError for a path of something else than a file; one that says
    no file, of a disk that is full for example, says this one.
    """
    if path.exists() and not path.is_file():  # a device would be gone for everybody
        raise FileExistsError(errno.EEXIST, "there already, and no regular file", str(path))
    folder = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    partial = folder / path.name
    folder.mkdir(mode=0o700)  # safetensors puts a file of its own beside, which is to end with it
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        allowed = partial.stat().st_mode
        yield partial
        partial.chmod(allowed)  # that of safetensors is its owner's alone
        if lasts:
            flush_to_disk(partial)
        partial.replace(path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # else it would lose its text
            error.filename = str(path)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if lasts:
        flush_to_disk(path.parent)


def check_apart(key: str, out: Path, *read: Path) -> None:
    """Raises ConfigError for `key` if a file to be written is one of those that are read."""
    if any(out.exists() and out.samefile(path) for path in read if path.exists()):
        raise ConfigError(f"{key}: {out} is read here, and would be lost; name another place")


def locked(descriptor: int) -> bool:
    """Takes the lock of an open file or folder, until it is closed; False where another process has
    it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_partial(path: Path) -> None:
    """Removes what killed processes left of a file, which nobody may be writing now. The name may
    be a pattern."""
    for each in path.parent.glob(f".{path.name}.{_SUFFIX}"):
        shutil.rmtree(each, ignore_errors=True)


def flush_to_disk(path: Path) -> None:
    """Flushes a file's content, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
