"""Context of every sequence: keys and values of all draft layers, in a paged pool, row by row as features arrive.

A row depends on its own token alone, so rows are computed as they come, in whatever order; the ledger counts them.

Symbols: L draft layers, S rows, n sequences, Hkv key-value heads, hd head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft_service.interface import Rows as Rows
from draft_service.ledger import Context, Ledger
from dspark.decoding.shaping import Shaper
from dspark.model.drafter import BlockDrafter
from dspark.types import Law, Refusal


@dataclass(slots=True)
class DraftContext(Context):
    """Rows of one sequence, and what a law has made of them."""

    shaper: Shaper | None = None  # made when a law asks for it; counts rows below the watermark

    def start_over(self, epoch: int) -> None:
        Context.start_over(self, epoch)
        self.shaper = None


class ContextStore(Ledger[DraftContext]):
    """All contexts of one drafter. Used on the device thread only."""

    def __init__(self, drafter: BlockDrafter, *, tokens: int, page_size: int, max_sequences: int) -> None:
        super().__init__(DraftContext, tokens=tokens, page_size=page_size, max_sequences=max_sequences)
        shape = drafter.config
        weight = drafter.fc.weight
        self._drafter = drafter
        self._device = weight.device
        self._dtype = weight.dtype
        slots = self.pages.total * page_size
        size = (shape.num_hidden_layers, slots, shape.num_key_value_heads, shape.head_dim)
        # Asked for whole, touched only where rows are written.
        self._keys = torch.empty(size, dtype=self._dtype, device=self._device)
        self._values = torch.empty(size, dtype=self._dtype, device=self._device)
        self._token_ids = np.zeros(slots, np.int64)

    @torch.inference_mode()
    def ingest(self, chunks: Sequence[Rows]) -> list[int | Refusal]:
        """Keys and values of all chunks in one go; the watermark of each chunk's sequence afterwards, or why not."""
        admitted = [self.admit(chunk) for chunk in chunks]
        fresh: list[tuple[DraftContext, Rows]] = []
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
