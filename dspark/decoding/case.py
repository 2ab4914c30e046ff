"""One sequence of a packed pass, and what the target says at its rows; every rule starts from these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.decoding.sampling import SamplingColumns, distribution
from dspark.decoding.shaping import Shaper
from dspark.types import Cursor, SamplingParams, SparseQ

Spot = tuple["PackedCase", int]  # a sequence and a slot of it, from 0; the last slot is where the target adds one token


@dataclass(frozen=True, slots=True)
class PackedCase:
    """One sequence of a packed pass, `validate_q` passed: its rows start at `first_row`, the anchor's."""

    cursor: Cursor
    params: SamplingParams
    first_row: int
    draft_ids: Sequence[int]
    q: SparseQ
    shaper: Shaper | None = None  # where the parameters shape logits: has counted all committed tokens


def target_probs(logits: Tensor, spots: Sequence[Spot]) -> Tensor:
    """Target distributions at these spots of a packed pass: logits [T, V], shaped -> [len(spots), V] float64."""
    rows = take(logits, [case.first_row + slot for case, slot in spots])
    return distribution(rows, SamplingColumns.of([case.params for case, _ in spots], logits.device))


def take(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows, without a copy where they follow each other."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return logits[rows[0] : rows[0] + len(rows)]
    return logits[torch.tensor(rows, device=logits.device)]
