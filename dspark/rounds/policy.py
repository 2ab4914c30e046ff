"""How much of a block is verified: the names users meet, as frozen types, and as columns for a whole cohort.

Knows nothing of numbers drafted or of requests; `schedule` applies what is named here.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dspark.errors import InvalidRequest
from dspark.numerals import number_in


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
    """The slots before the first whose own confidence is strictly below `at`; at 0 the full block."""

    at: float

    def __str__(self) -> str:
        return f"threshold:{self.at:g}"


@dataclass(frozen=True, slots=True)
class Greedy:
    """Algorithm 1: by descending survival while expected tokens per second still grow."""

    name: str = "greedy"  # or `adaptive`, where a verifier runs its rounds by itself

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Async:
    """A budget found in older confidences by searching all sizes; live survival only says who gets it."""

    def __str__(self) -> str:
        return "async"


Adaptive = Greedy | Async  # the scheduler chooses how much is verified, and whether anything is drafted
Policy = Off | Fixed | Threshold | Adaptive


class Kind(enum.IntEnum):
    """Policies as they stand in columns."""

    OFF = 0
    FIXED = 1
    THRESHOLD = 2
    GREEDY = 3
    ASYNC = 4


KINDS: dict[type[Policy], Kind] = {
    Off: Kind.OFF,
    Fixed: Kind.FIXED,
    Threshold: Kind.THRESHOLD,
    Greedy: Kind.GREEDY,
    Async: Kind.ASYNC,
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Policies of a cohort, [n] each."""

    kind: npt.NDArray[np.int64]  # of `Kind`
    slots: npt.NDArray[np.int64]  # of fixed:k, else 0
    at: npt.NDArray[np.float64]  # of threshold:t, else 0

    @staticmethod
    def of(policies: Sequence[Policy]) -> Columns:
        count = len(policies)
        return Columns(
            np.fromiter((KINDS[type(policy)] for policy in policies), np.int64, count),
            np.fromiter((policy.slots if isinstance(policy, Fixed) else 0 for policy in policies), np.int64, count),
            np.fromiter((policy.at if isinstance(policy, Threshold) else 0.0 for policy in policies), float, count),
        )

    @property
    def adaptive(self) -> npt.NDArray[np.bool_]:
        """Rows whose length is the scheduler's to choose."""
        return self.kind >= Kind.GREEDY


def parse_policy(text: str, *, field: str = "speculation.policy") -> Policy:
    """`off`, `fixed:k`, `threshold:t`, `adaptive`, or its older names `greedy` and `async`; errors name `field`."""
    name, _, argument = text.strip().partition(":")
    match name:
        case "off" if not argument:
            return Off()
        case "greedy" | "adaptive" if not argument:
            return Greedy(name)
        case "async" if not argument:
            return Async()
        case "fixed":
            return Fixed(_slots(argument, field))
        case "threshold":
            return Threshold(_share(argument, field))
    raise InvalidRequest(field, f"expected off, fixed:k, threshold:t or adaptive, got {text[:40]!r}")


def _slots(argument: str, field: str) -> int:
    if not (argument.isascii() and argument.isdigit() and len(argument) <= 4) or int(argument) < 1:
        raise InvalidRequest(field, f"fixed:k needs a whole number k >= 1, got {argument[:40]!r}")
    return int(argument)


def _share(argument: str, field: str) -> float:
    try:
        at = number_in(argument)
    except ValueError:
        at = math.nan
    if not 0.0 <= at <= 1.0:
        raise InvalidRequest(field, f"threshold:t needs a number t in [0, 1], got {argument[:40]!r}")
    return at
