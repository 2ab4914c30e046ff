"""Numbers on the command line, as they stand or not at all: `16`, and lists such as `1,4,16`."""

from __future__ import annotations

import argparse
from typing import Any

from dspark.numerals import number_in, whole_in


class Parser(argparse.ArgumentParser):
    """One whose `type=int` and `type=float` take neither "1_0" nor "nan"; so are its subcommands."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", int, one_whole)
        self.register("type", float, one_number)


def one_whole(text: str) -> int:
    """A whole number."""
    try:
        return whole_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def one_number(text: str) -> float:
    """A finite number."""
    try:
        return number_in(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def numbers(text: str, *, zero: bool = False) -> list[float]:
    """Finite numbers above 0, or from 0 on with `zero`."""
    try:
        values = [number_in(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers") from None
    if not all(value >= 0 if zero else value > 0 for value in values):
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
