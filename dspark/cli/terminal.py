"""Text out of models and of somebody's files must not steer the terminal of who reads it."""

from __future__ import annotations

import re
import sys


def written_out(text: str) -> str:
    """With control characters as escapes, but for tabs and line breaks."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)


def shown(text: str) -> str:
    """Of a model: written out in a terminal, as it is for another program."""
    return written_out(text) if sys.stdout.isatty() else text
