"""Helpers for a cohort's columns: one column per field, one row per sequence, never a message per
sequence. Without torch.

Columns of wrong lengths raise PeerError with the field's name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from dataclasses import asdict
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dspark.errors import PeerError
from dspark.types import PLACES, Draws
from dspark.wire.v1 import verify_pb2

MAX_ROWS = 1 << 16  # sequences of one cohort
ROUNDING = 1e-6  # by which a sum of chances may miss its bounds

Part = TypeVar("Part", tuple[int, ...], tuple[float, ...], tuple[bool, ...])

_WORD = 4  # bytes of an id or a probability


def fit(count: int, *, of: str = "", **columns: Sized) -> None:
    """Raises PeerError naming a column that does not have `count` values."""
    for name, column in columns.items():
        if len(column) != count:
            raise PeerError(f"{of}{name}: {len(column)} values, expected {count}")


def bounds(sizes: Iterable[int]) -> list[int]:
    """[n + 1] offsets at which each sequence's part of a ragged column begins; the last is its
    end."""
    return list(accumulate(sizes, initial=0))


def parts(whole: Part, ends: Sequence[int]) -> list[Part]:
    """Splits a ragged column at the offsets that `bounds` returns."""
    return [whole[start:end] for start, end in pairwise(ends)]


def chances(values: Sequence[float]) -> bool:
    """Whether all are in [0, 1]. Uses loops in C, but not numpy, which is slow to start for small
    cohorts."""
    if not values:
        return True
    known = not math.isnan(sum(values))  # which min and max would not notice
    return known and min(values) >= 0.0 and max(values) <= 1.0


def labels_in(data: bytes, slots: int) -> npt.NDArray[np.float32] | None:
    """Reads labels [slots, 2] of a pass, one sequence after the other; None when there are none.
    Each is NaN or in [0, 1].

    One invalid label raises PeerError for all, because one process computed them together.
    """
    if not data:
        return None
    if len(data) != 2 * _WORD * slots:
        raise PeerError(f"labels: {len(data)} bytes for {slots} slots")
    labels = np.frombuffer(data, "<f4").reshape(-1, 2)
    with np.errstate(invalid="ignore"):
        if ((labels < 0.0) | (labels > 1.0 + ROUNDING)).any():
            raise PeerError("labels: a chance is not in [0, 1]")
    return labels


def write_draws(of: Draws) -> verify_pb2.Draws:
    return verify_pb2.Draws(**asdict(of))


def read_draws(messages: Iterable[verify_pb2.Draws]) -> tuple[Draws, ...]:
    """Reads sums of draws; impossible ones raise PeerError, because they would count for ever."""
    return tuple(map(_one_draws, messages))


def _one_draws(of: verify_pb2.Draws) -> Draws:
    if len(of.places) != PLACES or sum(of.places) != of.slots:
        raise PeerError(
            f"draws.places: {len(of.places)} counts of {sum(of.places)} slots, expected {of.slots}"
        )
    for name, least, most in (
        ("drift", -of.slots, of.slots),
        ("variance", 0, of.slots),
        ("luck", -of.blocks, of.blocks),
        ("luck_variance", 0, of.blocks),
    ):
        if not least - ROUNDING <= (value := getattr(of, name)) <= most + ROUNDING:
            raise PeerError(f"draws.{name}: {value} over {most}")
    sums = (of.drift, of.variance, of.blocks, of.luck, of.luck_variance)
    return Draws(of.drafter_version, of.slots, tuple(of.places), *sums)
