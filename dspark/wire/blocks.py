"""Codec of the blocks of an order: columns, with a row for each sequence of the order. Without
torch.

Values of slots are stored row after row; q is a slice of opaque bytes. Columns of wrong lengths
spoil the whole message and raise PeerError with the field's name; an invalid value spoils its own
row alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import mul
from typing import Any

import numpy as np

from dspark.errors import PeerError
from dspark.rounds.plan import MAX_SLOTS
from dspark.types import Block, EmptyReason, SparseQ
from dspark.wire.cohorts import bounds, chances, fit
from dspark.wire.v1 import draft_pb2

MAX_Q_ENTRIES = 4096
_WORD = 4  # bytes of an id or a probability
_REASONS = {int(reason): reason for reason in EmptyReason}


@dataclass(slots=True)
class Blocks:
    """The blocks of an order. Columns of n rows, or of all their slots where it says so."""

    lengths: list[int]  # valid slots of each row; 0: an empty block
    empty_reasons: list[EmptyReason]
    watermarks: list[int]  # contiguous feature rows that the drafter holds
    starts: list[int]  # where the slots of each row begin
    token_ids: tuple[int, ...]  # of all slots
    confidence: tuple[float, ...]  # of all slots
    entries: list[int]  # of q, per slot
    q_starts: list[int]  # the byte at which q of each row begins
    q_ids: bytes  # see `SparseQ`
    q_probs: bytes
    spoilt: list[int] = field(default_factory=list)  # rows that cannot have been drafted, each once

    def confidences(self) -> list[tuple[float, ...]]:
        """The confidences of each row's slots."""
        slots = zip(self.starts, self.lengths, strict=True)
        return [self.confidence[start : start + length] for start, length in slots]

    def drafted(self, row: int, slots: int) -> tuple[tuple[int, ...], SparseQ]:
        """The first `slots` tokens of a row, and the q they were drawn from."""
        start, first, entries = self.starts[row], self.q_starts[row], self.entries[row]
        last = first + slots * entries * _WORD
        return self.token_ids[start : start + slots], SparseQ(
            entries, self.q_ids[first:last], self.q_probs[first:last]
        )

    def spoil(self, rows: Iterable[int]) -> None:
        """Makes these rows empty, for EmptyReason.INVALID."""
        for row in rows:
            self.lengths[row], self.empty_reasons[row] = 0, EmptyReason.INVALID
            self.spoilt.append(row)


def write_blocks(blocks: Sequence[Block], order: int, *, forward_ns: int = 0) -> dict[str, Any]:
    """The fields of a draft_pb2.Blocks, to be put into an event: a finished message would be copied
    into it, q and all."""
    return {
        "lengths": [len(block.token_ids) for block in blocks],
        "token_ids": chain.from_iterable([block.token_ids for block in blocks]),
        "confidence": chain.from_iterable([block.confidence for block in blocks]),
        "empty_reasons": [block.empty_reason for block in blocks],
        "watermarks": [block.watermark for block in blocks],
        "forward_ns": forward_ns,
        "order": order,
        "q_entries": [block.q.entries for block in blocks],
        "q_ids": b"".join([block.q.ids for block in blocks]),
        "q_probs": b"".join([block.q.probs for block in blocks]),
    }


def read_blocks(count: int, message: draft_pb2.Blocks, vocab_size: int) -> Blocks:
    """Reads the blocks of an order of `count` rows. A row with an invalid id or confidence is
    spoilt."""
    lengths, reasons, marks, entries = (
        message.lengths[:], message.empty_reasons[:], message.watermarks[:], message.q_entries[:],
    )  # fmt: skip
    fit(count, lengths=lengths, empty_reasons=reasons, watermarks=marks, q_entries=entries)
    if max(lengths, default=0) > MAX_SLOTS:
        raise PeerError(f"lengths: {max(lengths)} slots are over the limit of {MAX_SLOTS}")
    if max(entries, default=0) > MAX_Q_ENTRIES:
        raise PeerError(f"q_entries: {max(entries)} is over the limit of {MAX_Q_ENTRIES}")
    *starts, total = bounds(lengths)
    *q_starts, size = bounds([_WORD * each for each in map(mul, entries, lengths)])
    ids, confidence = message.token_ids[:], message.confidence[:]
    fit(total, token_ids=ids, confidence=confidence)
    q_ids, q_probs = message.q_ids, message.q_probs
    for name, column in (("q_ids", q_ids), ("q_probs", q_probs)):
        if len(column) != size:
            raise PeerError(f"{name}: {len(column)} bytes, expected {size}")
    why = [_REASONS.get(reason, EmptyReason.INVALID) for reason in reasons]
    blocks = Blocks(
        lengths,
        why,
        marks,
        starts,
        tuple(ids),
        tuple(confidence),
        entries,
        q_starts,
        q_ids,
        q_probs,
    )
    if ids and not (chances(confidence) and max(ids) < vocab_size):
        sure = np.array(confidence)
        # NaN is neither at least 0 nor at most 1
        wrong = (np.array(ids, np.int64) >= vocab_size) | ~((sure >= 0.0) & (sure <= 1.0))
        blocks.spoil(np.unique(np.repeat(np.arange(count), lengths)[wrong]).tolist())
    return blocks
