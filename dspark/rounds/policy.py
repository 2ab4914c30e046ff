"""The policies that decide how much of a block is verified, by the names users give, as frozen
types."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dspark.errors import InvalidRequest
from dspark.numerals import number_in
from dspark.rounds.plan import MAX_SLOTS

NAMES = "off, fixed:k, threshold:t or adaptive"


@dataclass(frozen=True, slots=True)
class Off:
    """Nothing is drafted: plain decoding."""

    def __str__(self) -> str:
        return "off"


@dataclass(frozen=True, slots=True)
class Fixed:
    """The first `slots` slots, always."""

    slots: int

    def __str__(self) -> str:
        return f"fixed:{self.slots}"


@dataclass(frozen=True, slots=True)
class Threshold:
    """The slots before the first whose own confidence is strictly below `at`; at 0 the full
    block."""

    at: float

    def __str__(self) -> str:
        return f"threshold:{self.at:g}"


@dataclass(frozen=True, slots=True)
class Adaptive:
    """The coordinator's plan decides how many slots are drafted, and from which worth on a slot is
    verified."""

    def __str__(self) -> str:
        return "adaptive"


Policy = Off | Fixed | Threshold | Adaptive


def parse_policy(text: str, *, field: str = "speculation.policy") -> Policy:
    """`off`, `fixed:k`, `threshold:t` or `adaptive`; errors name `field`."""
    name, _, argument = text.strip().partition(":")
    match name:
        case "off" if not argument:
            return Off()
        case "adaptive" if not argument:
            return Adaptive()
        case "fixed":
            return Fixed(_slots(argument, field))
        case "threshold":
            return Threshold(_share(argument, field))
        case "greedy" | "async" if not argument:
            raise InvalidRequest(field, f"{name} is called adaptive now; expected {NAMES}")
    raise InvalidRequest(field, f"expected {NAMES}, got {text[:40]!r}")


def _slots(argument: str, field: str) -> int:
    whole = argument.isascii() and argument.isdigit() and len(argument) <= 4
    if not whole or not 1 <= int(argument) <= MAX_SLOTS:
        raise InvalidRequest(
            field, f"fixed:k needs a whole number k in 1..{MAX_SLOTS}, got {argument[:40]!r}"
        )
    return int(argument)


def _share(argument: str, field: str) -> float:
    try:
        at = number_in(argument)
    except ValueError:
        at = math.nan
    if not 0.0 <= at <= 1.0:
        raise InvalidRequest(
            field, f"threshold:t needs a number t in [0, 1], got {argument[:40]!r}"
        )
    return at
