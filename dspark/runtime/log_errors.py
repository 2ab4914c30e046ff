"""Exceptions in logs: where they came from, and what they say if what they say cannot be a client's words.

Messages of the language's own errors quote values: `int("...")` quotes a text, a missing key is its own message. So
only errors whose messages are written here, by the operating system or by the numeric libraries are quoted.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, TextIO

from dspark.errors import DsparkError

QUOTED = (DsparkError, OSError, MemoryError, RuntimeError)
MOST = 16  # errors of one chain or group
_Info = tuple[type[BaseException], BaseException, TracebackType | None]


def as_data(exc_info: _Info) -> list[dict[str, Any]]:
    """For JSON: the error first, then what it came from."""
    return [
        {
            "type": type(error).__name__,
            "message": _message(error),
            "frames": [
                f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
            ],
        }
        for error in _chain(exc_info[1])
    ]


def as_text(out: TextIO, info: _Info) -> None:
    """For people: the way tracebacks usually look, what they came from first."""
    for error in reversed(list(_chain(info[1]))):
        out.write("\nTraceback (most recent call last):\n")
        out.writelines(traceback.format_tb(error.__traceback__))
        out.write(": ".join(filter(None, (type(error).__name__, _message(error)))))


def _message(error: BaseException) -> str:
    return str(error) if isinstance(error, QUOTED) else ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, those of its group, and what it was raised from or during."""
    waiting, told = [error], 0
    while waiting and told < MOST:
        error, told = waiting.pop(0), told + 1
        yield error
        if isinstance(error, BaseExceptionGroup):
            waiting += error.exceptions
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is not None:
            waiting.append(before)
