"""Lists of numbers on the command line: `1,4,16`."""

from __future__ import annotations

import argparse


def numbers(text: str, *, zero: bool = False) -> list[float]:
    """Finite numbers above 0, or from 0 on with `zero`."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if not all((value >= 0 if zero else value > 0) and value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be {'0 or more' if zero else 'above 0'}")
    return values


def whole(text: str, *, zero: bool = False) -> list[int]:
    """The same, whole."""
    values = numbers(text, zero=zero)
    if not all(value == int(value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers")
    return [int(value) for value in values]


def whole_or_zero(text: str) -> list[int]:
    """For pools that may be empty."""
    return whole(text, zero=True)
