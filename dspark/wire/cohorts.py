"""Cohorts to messages and back: one column per field, one row per sequence, never a message per sequence. No torch.

What belongs to slots stands one sequence after the other, `lengths` of each; q of a sequence is a slice of opaque
bytes. Columns that do not fit each other spoil the whole cohort and raise PeerError with the field's name; a value
that is no value spoils its own sequence alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter, mul
from typing import Any, Protocol, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from dspark.errors import PeerError
from dspark.types import PLACES, Block, Cursor, Draws, EmptyReason, SparseQ
from dspark.wire.v1 import draft_pb2, verify_pb2

MAX_ROWS = 1 << 16  # sequences of one cohort
MAX_SLOTS = 64  # longest block anybody may send
MAX_Q_ENTRIES = 4096
ROUNDING = 1e-6  # by which a sum of chances may miss its bounds

Part = TypeVar("Part", bytes, tuple[int, ...], tuple[float, ...])

_WORD = 4  # bytes of an id or a probability
_SEQUENCE, _EPOCH, _ROUND, _LENGTH = map(attrgetter, ("sequence", "epoch", "round", "committed_len"))


class _Column(Protocol):
    def __len__(self) -> int: ...


def fit(count: int, *, of: str = "", **columns: _Column) -> None:
    """Raises PeerError naming a column that has not `count` values."""
    for name, column in columns.items():
        if len(column) != count:
            raise PeerError(f"{of}{name}: {len(column)} values, expected {count}")


def read_lengths(column: Iterable[int]) -> list[int]:
    """Slots of each sequence."""
    lengths = list(column)
    if lengths and max(lengths) > MAX_SLOTS:
        raise PeerError(f"lengths: {max(lengths)} slots are over the limit of {MAX_SLOTS}")
    return lengths


def bounds(sizes: Iterable[int]) -> list[int]:
    """[n + 1] where each sequence's part of something ragged begins; the last is where everything ends."""
    return list(accumulate(sizes, initial=0))


def parts(whole: Part, ends: Sequence[int]) -> list[Part]:
    """What `bounds` cuts something ragged into."""
    return [whole[start:end] for start, end in pairwise(ends)]


class Qs(TypedDict):
    """The fields that hold the distributions of a cohort."""

    q_entries: list[int]
    q_ids: bytes
    q_probs: bytes


def write_q(qs: Sequence[SparseQ]) -> Qs:
    return Qs(
        q_entries=[q.entries for q in qs],
        q_ids=b"".join([q.ids for q in qs]),
        q_probs=b"".join([q.probs for q in qs]),
    )


def read_q(entries: Sequence[int], ids: bytes, probs: bytes, lengths: Sequence[int]) -> list[SparseQ]:
    """The distributions of each sequence's slots; sizes must agree exactly."""
    fit(len(lengths), q_entries=entries)
    if entries and max(entries) > MAX_Q_ENTRIES:
        raise PeerError(f"q_entries: {max(entries)} is over the limit of {MAX_Q_ENTRIES}")
    ends = [_WORD * end for end in bounds(map(mul, entries, lengths))]
    if len(ids) != ends[-1]:
        raise PeerError(f"q_ids: {len(ids)} bytes, expected {ends[-1]}")
    if len(probs) != ends[-1]:
        raise PeerError(f"q_probs: {len(probs)} bytes, expected {ends[-1]}")
    return list(map(SparseQ, entries, parts(ids, ends), parts(probs, ends)))


def write_blocks(blocks: Sequence[Block], order: int, *, forward_ns: int = 0, wait_ns: int = 0) -> dict[str, Any]:
    """The fields of a draft_pb2.Blocks, for whoever makes the event: a message inside another is copied, q and all."""
    return dict(
        lengths=[len(block.token_ids) for block in blocks],
        token_ids=chain.from_iterable([block.token_ids for block in blocks]),
        confidence=chain.from_iterable([block.confidence for block in blocks]),
        empty_reasons=[block.empty_reason for block in blocks],
        watermarks=[block.watermark for block in blocks],
        forward_ns=forward_ns,
        order=order,
        wait_ns=wait_ns,
        **write_q([block.q for block in blocks]),
    )


def read_blocks(cursors: Sequence[Cursor], message: draft_pb2.Blocks, vocab_size: int) -> list[Block]:
    """A drafter's blocks of these sequences. One with an id or a confidence that is none is an empty one, for
    EmptyReason.INVALID."""
    lengths = read_lengths(message.lengths)
    reasons, marks = message.empty_reasons[:], message.watermarks[:]
    fit(len(cursors), lengths=lengths, empty_reasons=reasons, watermarks=marks)
    ends, ids, confidence = bounds(lengths), message.token_ids[:], message.confidence[:]
    fit(ends[-1], token_ids=ids, confidence=confidence)
    qs = read_q(message.q_entries[:], message.q_ids, message.q_probs, lengths)
    why = [_REASONS.get(reason, EmptyReason.INVALID) for reason in reasons]
    blocks = list(map(Block, cursors, parts(tuple(ids), ends), parts(tuple(confidence), ends), qs, why, marks))
    if ids and not _sound(ids, confidence, vocab_size):
        sure = np.array(confidence)
        wrong = (np.array(ids, np.int64) >= vocab_size) | ~((sure >= 0.0) & (sure <= 1.0))  # NaN is neither
        for row in np.unique(np.repeat(np.arange(len(lengths)), lengths)[wrong]).tolist():
            blocks[row] = Block(cursors[row], empty_reason=EmptyReason.INVALID, watermark=marks[row])
    return blocks


def _sound(ids: Sequence[int], confidence: Sequence[float], vocab_size: int) -> bool:
    """Whether every value is one: at the speed of C, and without numpy, which small cohorts would wait for."""
    known = not math.isnan(sum(confidence))  # which min and max would not notice
    return known and min(confidence) >= 0.0 and max(confidence) <= 1.0 and max(ids) < vocab_size


_REASONS = {int(reason): reason for reason in EmptyReason}


def labels_in(data: bytes, slots: int) -> npt.NDArray[np.float32] | None:
    """[slots, 2] of a pass, one sequence after the other; None when there are none. Each is NaN or in [0, 1].

    A label that is none spoils all: they are one process's arithmetic.
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
    return verify_pb2.Draws(
        drafter_version=of.drafter_version,
        slots=of.slots,
        places=of.places,
        drift=of.drift,
        variance=of.variance,
        blocks=of.blocks,
        luck=of.luck,
        luck_variance=of.luck_variance,
    )


def read_draws(messages: Iterable[verify_pb2.Draws]) -> tuple[Draws, ...]:
    """Sums that can be sums; anything else breaks the protocol, as it would count for ever."""
    return tuple(map(_one_draws, messages))


def _one_draws(of: verify_pb2.Draws) -> Draws:
    if len(of.places) != PLACES or sum(of.places) != of.slots:
        raise PeerError(f"draws.places: {len(of.places)} counts of {sum(of.places)} slots, expected {of.slots}")
    for name, value, count in (("drift", of.drift, of.slots), ("luck", of.luck, of.blocks)):
        if not abs(value) <= count + ROUNDING:
            raise PeerError(f"draws.{name}: {value} over {count}")
    for name, value, count in (("variance", of.variance, of.slots), ("luck_variance", of.luck_variance, of.blocks)):
        if not -ROUNDING <= value <= count + ROUNDING:
            raise PeerError(f"draws.{name}: {value} over {count}")
    sums = (of.drift, of.variance, of.blocks, of.luck, of.luck_variance)
    return Draws(of.drafter_version, of.slots, tuple(of.places), *sums)
