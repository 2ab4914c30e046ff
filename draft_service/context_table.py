"""Which sequences have context here, and which of their rows arrived. Without tensors, so that
engines without weights use it too.

Rows may arrive in any order and more than once. The watermark is the number of rows without a gap
from position 0. A context belongs to the epoch under which its sequence was opened: rows of another
one are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from draft_service.interface import Rows
from dspark.pages import KVBlockPool
from dspark.types import Cursor, Refusal, RefusalReason


@dataclass(slots=True)
class Context:
    """Which rows of one sequence are here, and the room reserved for them."""

    sequence: int
    epoch: int
    owner: int  # the stream that opened it
    capacity: int
    watermark: int = 0
    ahead: list[tuple[int, int]] = field(default_factory=list)  # disjoint runs past a gap, sorted

    def covers(self, start: int, stop: int) -> bool:
        return stop <= self.watermark or any(
            low <= start and stop <= high for low, high in self.ahead
        )

    def add(self, start: int, stop: int) -> None:
        """Notes that rows start .. stop - 1 are here."""
        if start <= self.watermark and not self.ahead:  # the common case
            self.watermark = max(self.watermark, stop)
            return
        runs = sorted([(0, self.watermark), *self.ahead, (start, stop)])
        joined = [runs[0]]
        for low, high in runs[1:]:
            if low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], high))
            else:
                joined.append((low, high))
        self.watermark, self.ahead = joined[0][1], joined[1:]


C = TypeVar("C", bound=Context)


class ContextTable(Generic[C]):
    """All contexts of one drafter and their pages; changed on the device thread, read on any."""

    def __init__(self, kind: type[C], *, tokens: int, page_size: int, max_sequences: int) -> None:
        self.pages = KVBlockPool(tokens // page_size, page_size)
        self._kind = kind
        self._max_sequences = max_sequences
        self._contexts: dict[int, C] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    def __getitem__(self, sequence: int) -> C:
        return self._contexts[sequence]

    def find(self, sequence: int, epoch: int) -> C | None:
        """The context of the sequence, if it was opened under this epoch."""
        context = self._contexts.get(sequence)
        return None if context is None or context.epoch != epoch else context

    def watermark(self, sequence: int, epoch: int) -> int:
        """Contiguous rows held; 0 for an unknown sequence or another epoch."""
        context = self.find(sequence, epoch)
        return 0 if context is None else context.watermark

    def open(self, cursor: Cursor, reserve_tokens: int, owner: int) -> Refusal | None:
        """Reserves rows for the sequence's whole life, or returns why not. Opening it again starts
        it over: all of its rows are sent again."""
        if (before := self._contexts.get(cursor.sequence)) is not None:
            self._drop(before)
        if reserve_tokens < 1:
            return Refusal(RefusalReason.INVALID, "reserve_tokens: 0 rows are no context")
        if len(self._contexts) >= self._max_sequences:
            return Refusal(
                RefusalReason.NO_PAGES, f"{len(self._contexts)} sequences are held, the limit"
            )
        if not self.pages.open(cursor.sequence, reserve_tokens, reserve_tokens):
            return Refusal(
                RefusalReason.NO_PAGES,
                f"{self.pages.pages_for(reserve_tokens)} pages are needed and {self.pages.free} "
                "are free",
            )
        capacity = self.pages.room(cursor.sequence)
        self._contexts[cursor.sequence] = self._kind(cursor.sequence, cursor.epoch, owner, capacity)
        return None

    def admit(self, chunk: Rows) -> C | Refusal:
        """The context that a chunk's rows belong to, or why they are refused."""
        context = self.find(chunk.sequence, chunk.epoch)
        if context is None:
            return Refusal(
                RefusalReason.UNKNOWN_SEQUENCE,
                "the sequence is not open here under this epoch",
            )
        stop = chunk.start + len(chunk.rows)
        if stop > context.capacity:
            return Refusal(
                RefusalReason.INVALID,
                f"start_position: rows up to {stop} exceed {context.capacity}",
            )
        return context

    def release(self, sequence: int, epoch: int) -> bool:
        """Frees a context that was opened under this epoch; returns whether one was."""
        context = self.find(sequence, epoch)
        if context is None:
            return False
        self._drop(context)
        return True

    def release_owner(self, owner: int) -> int:
        """Frees everything a stream opened; returns how many."""
        mine = [context for context in self._contexts.values() if context.owner == owner]
        for context in mine:
            self._drop(context)
        return len(mine)

    def _drop(self, context: C) -> None:
        del self._contexts[context.sequence]
        self.pages.release(context.sequence)
