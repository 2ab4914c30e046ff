"""Files that are there whole or not at all: who reads one meanwhile finds what was there before."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def placed(path: Path, *, mode: int = 0o666, lasts: bool = False) -> Iterator[Path]:
    """Where to write what is at `path` behind the block; of a block that fails nothing is left.

    mode: of the file, as far as the umask lets it. lasts: it is there even when the machine stops
    right behind the block.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    try:
        yield partial
        if lasts:
            flush_to_disk(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    if lasts:
        flush_to_disk(path.parent)


def flush_to_disk(path: Path) -> None:
    """Makes the content of a file, or the names in a folder, last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
