"""Sequences of a packed pass, the target's distributions at their rows, and their drafted slots in
flat arrays.

Sequences differ in slots and in entries per slot, so arrays are flat and indices say what belongs
together. Invariant 3, q sent is q sampled: the float32 numbers are divided by their float64 sum
here, as when they were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.decoding.sampling import SamplingColumns, distribution
from dspark.decoding.shaping import Shaper
from dspark.types import Cursor, SamplingParams, SparseQ

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# A sequence and a slot of it, from 0; the last slot is where the target adds one token.
Spot = tuple["PackedCase", int]


@dataclass(frozen=True, slots=True)
class PackedCase:
    """One sequence of a packed pass, checked by `sound_q`; `first_row` is the row of its
    anchor."""

    cursor: Cursor
    params: SamplingParams
    first_row: int
    draft_ids: Sequence[int]
    q: SparseQ
    # if the parameters shape logits: has counted all committed tokens
    shaper: Shaper | None = None


def target_probs(logits: Tensor, spots: Sequence[Spot]) -> Tensor:
    """Target distributions at these spots of a packed pass: shaped logits [T, V] -> [len(spots), V]
    float64."""
    rows = take(logits, [case.first_row + slot for case, slot in spots])
    return distribution(rows, SamplingColumns.of([case.params for case, _ in spots], logits.device))


def take(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows of the logits; a view if they are consecutive."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return logits[rows[0] : rows[0] + len(rows)]
    return logits[torch.tensor(rows, device=logits.device)]


@dataclass(frozen=True)
class Slots:
    """Drafted slots of all sequences, in order: S slots and N entries in all."""

    lengths: list[int]  # slots of each sequence
    within: Ints  # [S] slot number inside its sequence, from 1
    drafted: Ints  # [S]
    slot: Ints  # [N] slot of an entry, ascending
    ids: Ints  # [N]
    probs: Floats  # [N], divided by the float64 sum of their slot

    @staticmethod
    def of(
        drafts: Sequence[Sequence[int]],
        ids: Sequence[npt.NDArray[np.integer]],
        probs: Sequence[npt.NDArray[np.floating]],
        entries: Sequence[int],
    ) -> Slots:
        """Arguments have one item per sequence: drafted tokens, flat ids and probabilities, entries
        per slot."""
        lengths = [len(draft) for draft in drafts]
        total = sum(lengths)
        slot = np.repeat(np.arange(total), np.repeat(np.array(entries, np.int64), lengths))
        weights = np.concatenate(probs).astype(np.float64)
        return Slots(
            lengths=lengths,
            within=np.concatenate([np.arange(1, length + 1) for length in lengths]),
            drafted=np.array([token for draft in drafts for token in draft], np.int64),
            slot=slot,
            ids=np.concatenate(ids).astype(np.int64),
            probs=weights / np.bincount(slot, weights, minlength=total)[slot],
        )

    @cached_property
    def starts(self) -> list[int]:
        """First slot of each sequence."""
        starts: list[int] = (np.cumsum(self.lengths) - self.lengths).tolist()
        return starts

    @cached_property
    def q(self) -> Floats:
        """q of the drafted tokens: [S]; 0 where it has no such entry."""
        return self.of_drafted(self.probs)

    @cached_property
    def counting(self) -> list[int]:
        """How many leading slots of each sequence count.

        A token that its q cannot produce was never drawn from it: its slot counts as not sent, and
        so do those after it. That keeps the distribution and keeps tokens of probability zero out,
        instead of accepting whatever arrived.
        """
        possible = (self.q > 0).tolist()
        return [
            next((k for k in range(length) if not possible[start + k]), length)
            for start, length in zip(self.starts, self.lengths, strict=True)
        ]

    def of_drafted(self, values: Floats) -> Floats:
        """The values [N] of q's entries at the drafted tokens: [S]; 0 where q has no such entry."""
        own = np.where(self.ids == self.drafted[self.slot], values, 0.0)
        return np.bincount(self.slot, own, minlength=len(self.drafted)).astype(np.float64)

    def dense(self, chosen: Sequence[int | None], like: Tensor) -> Tensor:
        """q of one slot per row, or zeros for None: like `like` [m, V], on the host."""
        row_of = np.full(len(self.drafted), -1)
        for row, slot in enumerate(chosen):
            if slot is not None:
                row_of[slot] = row
        rows = row_of[self.slot]
        wanted = rows >= 0
        q = torch.zeros_like(like)
        q.numpy()[rows[wanted], self.ids[wanted]] = self.probs[wanted]
        return q
