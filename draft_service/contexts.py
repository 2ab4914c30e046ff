"""Context of every sequence: keys and values of all draft layers, in a paged pool, row by row as features arrive.

A row depends on its own token alone, so rows may come in any order and more than once; what counts is the watermark,
the length of the run without a gap from position 0. Rows belong to an epoch: a higher one starts the context over, a
lower one is refused. A sequence that nobody opened has no room and gets none.

Symbols: L draft layers, S rows, n sequences, Hkv key-value heads, hd head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from draft_service.interface import Rows as Rows
from dspark.decoding.shaping import Shaper
from dspark.model.drafter import BlockDrafter
from dspark.pages import PageTable
from dspark.types import Cursor, Law, Refusal, RefusalReason


@dataclass(slots=True)
class Context:
    """Rows of one sequence."""

    sequence: int
    epoch: int
    owner: int  # the session that opened it
    capacity: int
    watermark: int = 0
    ahead: list[tuple[int, int]] = field(default_factory=list)  # runs past a gap, ascending, apart
    shaper: Shaper | None = None  # made when a law asks for it; counts rows below the watermark

    def covers(self, start: int, stop: int) -> bool:
        return stop <= self.watermark or any(low <= start and stop <= high for low, high in self.ahead)

    def add(self, start: int, stop: int) -> None:
        """Rows start .. stop - 1 are there now."""
        runs = sorted([(0, self.watermark), *self.ahead, (start, stop)])
        joined = [runs[0]]
        for low, high in runs[1:]:
            if low <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], high))
            else:
                joined.append((low, high))
        self.watermark, self.ahead = joined[0][1], joined[1:]

    def start_over(self, epoch: int) -> None:
        self.epoch, self.watermark, self.ahead, self.shaper = epoch, 0, [], None


class ContextStore:
    """All contexts of one drafter. Used on the device thread only."""

    def __init__(self, drafter: BlockDrafter, *, tokens: int, page_size: int, max_sequences: int) -> None:
        shape = drafter.config
        weight = drafter.fc.weight
        self._drafter = drafter
        self._device = weight.device
        self._dtype = weight.dtype
        self._max_sequences = max_sequences
        self.pages = PageTable(tokens // page_size, page_size)
        slots = self.pages.total * page_size
        size = (shape.num_hidden_layers, slots, shape.num_key_value_heads, shape.head_dim)
        # Asked for whole, touched only where rows are written.
        self._keys = torch.empty(size, dtype=self._dtype, device=self._device)
        self._values = torch.empty(size, dtype=self._dtype, device=self._device)
        self._token_ids = np.zeros(slots, np.int64)
        self._contexts: dict[int, Context] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    def get(self, sequence: int) -> Context | None:
        return self._contexts.get(sequence)

    def open(self, cursor: Cursor, reserve_tokens: int, owner: int) -> Refusal | None:
        """Reserves rows for the sequence's whole life. Opening it again keeps its rows; a higher epoch does not."""
        context = self._contexts.get(cursor.sequence)
        if context is not None:
            if cursor.epoch < context.epoch:
                return Refusal(RefusalReason.STALE_CURSOR, f"epoch {cursor.epoch} was followed by {context.epoch}")
            if reserve_tokens <= context.capacity:
                context.owner = owner
                if cursor.epoch > context.epoch:
                    context.start_over(cursor.epoch)
                return None
            self._drop(context)
        if reserve_tokens < 1:
            return Refusal(RefusalReason.INVALID, "reserve_tokens: 0 rows are no context")
        if len(self._contexts) >= self._max_sequences:
            return Refusal(RefusalReason.NO_PAGES, f"{len(self._contexts)} sequences are held, the limit")
        if not self.pages.can_reserve(reserve_tokens):
            free = self.pages.total - self.pages.held
            return Refusal(
                RefusalReason.NO_PAGES, f"{self.pages.pages_for(reserve_tokens)} pages are needed and {free} are free"
            )
        self.pages.reserve(cursor.sequence, reserve_tokens)
        capacity = self.pages.capacity(cursor.sequence)
        self._contexts[cursor.sequence] = Context(cursor.sequence, cursor.epoch, owner, capacity)
        return None

    @torch.inference_mode()
    def ingest(self, chunks: Sequence[Rows]) -> list[int | Refusal]:
        """Keys and values of all chunks in one go; the watermark of each chunk's sequence afterwards, or why not."""
        admitted = [self._admit(chunk) for chunk in chunks]
        fresh: list[tuple[Context, Rows]] = []
        slots: list[int] = []
        positions: list[int] = []
        token_ids: list[int] = []
        for chunk, context in zip(chunks, admitted, strict=True):
            stop = chunk.start + len(chunk.rows)
            if isinstance(context, Context) and context.epoch == chunk.epoch and not context.covers(chunk.start, stop):
                fresh.append((context, chunk))
                slots.extend(self.pages.slots(chunk.sequence, chunk.start, stop))
                token_ids.extend(chunk.token_ids or [0] * len(chunk.rows))
                positions.extend(range(chunk.start, stop))
        if fresh:
            rows = fresh[0][1].rows if len(fresh) == 1 else torch.cat([chunk.rows for _, chunk in fresh])
            where = torch.tensor([positions, slots], dtype=torch.int64, device=self._device)
            keys, values = self._drafter.context_kv(rows.to(self._device, self._dtype), where[0])
            self._keys.index_copy_(1, where[1], keys)
            self._values.index_copy_(1, where[1], values)
            self._token_ids[slots] = token_ids
        for context, chunk in fresh:  # only now: a watermark never claims rows that were not written
            context.add(chunk.start, chunk.start + len(chunk.rows))
        return [one.watermark if isinstance(one, Context) else one for one in admitted]

    def gather(self, members: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """(sequence, rows) of n members -> keys and values [L, n, S, Hkv, hd], S the longest; a lone run is a view."""
        longest = max(rows for _, rows in members)
        if len(members) == 1 and (base := self.pages.base(members[0][0])) is not None:
            return tuple(pool[:, base : base + longest].unsqueeze(1) for pool in (self._keys, self._values))  # type: ignore[return-value]
        table: list[int] = []
        for sequence, rows in members:
            slots = self.pages.slots(sequence, 0, rows)
            table.extend(slots)
            # Padding repeats a row that was written: masked garbage could still be NaN.
            table.extend([slots[0] if rows else 0] * (longest - rows))
        index = torch.tensor(table, dtype=torch.int64, device=self._device)
        shape = (len(self._keys), len(members), longest, *self._keys.shape[2:])
        return self._keys.index_select(1, index).view(shape), self._values.index_select(1, index).view(shape)

    def shaper(self, sequence: int, law: Law, through: int) -> Shaper:
        """What a law makes of logits after the rows below `through`. A token id that was not told or cannot be one
        makes a draft less like the target's law, and nothing else."""
        context = self._contexts[sequence]
        if context.shaper is None or context.shaper.law != law or context.shaper.length > through:
            context.shaper = Shaper(law)
        new = self._token_ids[self.pages.slots(sequence, context.shaper.length, through)]
        return context.shaper.extend(np.minimum(new, self._drafter.config.vocab_size - 1))

    def release(self, sequence: int, epoch: int) -> bool:
        """Frees a context of this epoch or a lower one; an unknown one is fine."""
        context = self._contexts.get(sequence)
        if context is None or context.epoch > epoch:
            return False
        self._drop(context)
        return True

    def release_owner(self, owner: int) -> int:
        """Frees everything a session opened; returns how many."""
        mine = [context for context in self._contexts.values() if context.owner == owner]
        for context in mine:
            self._drop(context)
        return len(mine)

    def _drop(self, context: Context) -> None:
        del self._contexts[context.sequence]
        self.pages.release(context.sequence)

    def _admit(self, chunk: Rows) -> Context | Refusal:
        context = self._contexts.get(chunk.sequence)
        if context is None:
            return Refusal(RefusalReason.UNKNOWN_SEQUENCE, f"sequence {chunk.sequence} was never opened, or released")
        if chunk.epoch < context.epoch:
            return Refusal(RefusalReason.STALE_CURSOR, f"epoch {chunk.epoch} was followed by {context.epoch}")
        stop = chunk.start + len(chunk.rows)
        if stop > context.capacity:
            return Refusal(RefusalReason.INVALID, f"start_position: rows up to {stop} exceed {context.capacity}")
        if chunk.epoch > context.epoch:
            context.start_over(chunk.epoch)
        return context
