"""The nouns between the services of a drafter and its engine. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dspark.types import Cursor, SamplingParams


class DraftItem(NamedTuple):
    """One sequence of a cohort: propose a block after this anchor."""

    cursor: Cursor
    anchor: int
    features_through: int
    params: SamplingParams
    max_slots: int = 0  # 0 means a full block
    mask: bytes = b""  # what may come in the first slot, see `first_masked`; empty: anything


class Rows(NamedTuple):
    """Feature rows of one chunk."""

    sequence: int
    epoch: int
    start: int
    rows: Any  # [rows, H] on the CPU, as the engine's own `read_rows` gave them
    token_ids: Sequence[int]  # the token at each position


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What is announced of a drafter."""

    vocab_size: int
    hidden_size: int
    block_size: int


def number_here(verifier: int, sequence: int) -> int:
    """Under which a verifier's sequence is known here: several verifiers may give one number to
    different sequences."""
    return verifier << 64 | sequence
