"""The types that a drafter's services and its engine exchange. Without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dspark.types import Cursor, SamplingParams


class DraftItem(NamedTuple):
    """One sequence of an order: the block to draft, after this anchor."""

    cursor: Cursor
    anchor: int
    features_through: int
    params: SamplingParams
    max_slots: int = 0  # 0 means a full block
    mask: bytes = b""  # tokens allowed in the first slot, see `first_masked`; empty: all


class Rows(NamedTuple):
    """Feature rows of one sequence, at consecutive positions."""

    sequence: int
    epoch: int
    start: int
    rows: Any  # [rows, H] on the CPU, as the engine's own `read_rows` returns them
    token_ids: Sequence[int]  # the token at each position


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """The sizes of a drafter that its description announces."""

    vocab_size: int
    hidden_size: int
    block_size: int


def number_here(verifier: int, sequence: int) -> int:
    """The drafter's own number for a verifier's sequence, because verifiers may use the same
    numbers."""
    return verifier << 64 | sequence
