"""The one line on stdout of a command that starts something: where it serves."""

from __future__ import annotations

import contextlib
import os
import sys


def tell(line: str) -> None:
    """A full disk or a reader that is gone ends nothing that serves; it is said on stderr instead."""
    try:
        print(line, flush=True)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError, ValueError):  # what is left in it would fail again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with contextlib.suppress(OSError, ValueError):
            print(f"stdout cannot be written ({error}): {line}", file=sys.stderr, flush=True)
