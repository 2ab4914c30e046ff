"""Strict parsing of numbers from users and clients: a value is taken as it is or refused.

Python's own readers are generous: `int` takes "1_0" for 10, "٣" for 3, 1.7 for 1 and True for 1.
Nothing here does.
"""

from __future__ import annotations

import math
import numbers
import operator
import re

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_SHOWN = 40  # characters of a value that an error shows


def whole_in(text: str) -> int:
    """Parses a whole number in ASCII digits; ValueError for any other text."""
    if not _WHOLE.fullmatch(text.strip(" ")):
        raise ValueError(f"{text[:_SHOWN]!r} is not a whole number")
    return int(text)


def number_in(text: str) -> float:
    """Parses a finite number; ValueError for any other text."""
    if not _NUMBER.fullmatch(text.strip(" ")) or not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:_SHOWN]!r} is not a number")
    return value


def whole(value: object) -> int:
    """The value as int, of any library's whole numbers; ValueError for fractions, texts and
    booleans."""
    if not _is_truth(value):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ValueError(f"must be a whole number, got {shown(value)}")


def number(value: object) -> float:
    """The value as float, of any library's numbers; ValueError for texts and booleans."""
    if not _is_truth(value) and (isinstance(value, numbers.Real) or hasattr(value, "__index__")):
        try:
            return float(value)
        except OverflowError:
            pass
    raise ValueError(f"must be a number, got {shown(value)}")


def truth(value: object) -> bool:
    """The value as bool; ValueError unless it is a boolean, Python's or NumPy's."""
    if not _is_truth(value):
        raise ValueError(f"must be true or false, got {shown(value)}")
    return bool(value)


def shown(value: object) -> str:
    """repr of a value for an error message, cut to `_SHOWN` characters."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _is_truth(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")  # NumPy's too
