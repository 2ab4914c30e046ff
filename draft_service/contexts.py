"""The context of every sequence: entries of all draft layers in a paged pool, made from rows and
token ids as they arrive.

The drafter decides what an entry is made from (`dspark.model.family`). If a row is enough, entries
are made as rows arrive, in any order. If the token after it or all earlier entries are needed, rows
and ids are kept, and entries are made in order, up to the watermark less the drafter's lag: the
last row waits for the anchor.

Symbols: L draft layers, S entries, n sequences, T tokens, Hkv key-value heads, hd head size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from draft_service.context_table import Context, ContextTable
from draft_service.interface import Rows
from dspark.decoding.shaping import Shaper
from dspark.model.family import ContextTokens, Drafter, Entries
from dspark.model.scratch import Scratch
from dspark.pages import Slots, numbers_of, together
from dspark.types import Refusal, SamplingParams

PASS_TOKENS = 256  # tokens of a sequence in one pass, where entries depend on earlier ones


@dataclass(slots=True)
class DraftContext(Context):
    """Rows of one sequence, and the entries made from them."""

    made: int = 0  # entries 0 .. made - 1 are here; for drafters that make them in order
    # only where sampling parameters need one; counts token ids below the watermark
    shaper: Shaper | None = None


class ContextStore(ContextTable[DraftContext]):
    """All contexts of one drafter. Used on the device thread only."""

    def __init__(
        self, drafter: Drafter, *, tokens: int, page_size: int, max_sequences: int
    ) -> None:
        super().__init__(
            DraftContext, tokens=tokens, page_size=page_size, max_sequences=max_sequences
        )
        self._drafter, self._needs = drafter, drafter.needs
        self.in_order = self._needs.past or self._needs.token != "none"
        weight = next(drafter.parameters())
        self._device, self._dtype = weight.device, weight.dtype
        slots = self.pages.total * page_size
        of = drafter.config
        layers, kv_heads = of.num_hidden_layers, of.num_key_value_heads
        # Allocated whole; memory is touched only where entries are written. Padding is read from
        # one extra slot that no sequence holds.
        self._spare = slots
        size = (layers, slots + 1, kv_heads, of.head_dim)
        self._keys = torch.empty(size, dtype=self._dtype, device=self._device)
        self._values = torch.empty(size, dtype=self._dtype, device=self._device)
        self._keys[:, slots], self._values[:, slots] = 0.0, 0.0
        width = drafter.width if self.in_order else 0
        self._rows = torch.empty(slots, width, dtype=self._dtype, device=self._device)
        self._token_ids = np.zeros(slots, np.int64)
        self._scratch = Scratch()

    @torch.inference_mode()
    def ingest(self, chunks: Sequence[Rows]) -> list[int | Refusal]:
        """Ingests all chunks in one pass; returns each sequence's watermark afterwards, or why
        not."""
        admitted = [self.admit(chunk) for chunk in chunks]
        fresh: list[tuple[DraftContext, Rows]] = []
        slots, positions, token_ids = list[Slots](), list[range](), list[int]()
        for chunk, context in zip(chunks, admitted, strict=True):
            stop = chunk.start + len(chunk.rows)
            if isinstance(context, Context) and not context.covers(chunk.start, stop):
                fresh.append((context, chunk))
                slots.append(self.pages.slots(chunk.sequence, chunk.start, stop))
                token_ids.extend(chunk.token_ids)
                positions.append(range(chunk.start, stop))
        if fresh:
            rows = (
                fresh[0][1].rows
                if len(fresh) == 1
                else torch.cat([chunk.rows for _, chunk in fresh])
            )
            at = np.stack((together(positions), together(slots)))
            where = torch.from_numpy(at).to(self._device)
            rows = rows.to(self._device, self._dtype)
            self._token_ids[at[1]] = token_ids
            if self.in_order:
                self._rows.index_copy_(0, where[1], rows)
            else:
                self._drafter.ingest_into(
                    ContextTokens(rows, None, where[0]), self._keys, self._values, where[1]
                )
        for context, chunk in fresh:  # only now: watermarks never claim rows that are not written
            context.add(chunk.start, chunk.start + len(chunk.rows))
        if self.in_order:
            self.catch_up({context.sequence: context for context, _ in fresh}.values())
        return [one.watermark if isinstance(one, Context) else one for one in admitted]

    @torch.inference_mode()
    def catch_up(self, contexts: Iterable[DraftContext]) -> None:
        """Makes all entries that the rows here allow, for drafters that make them in order."""
        behind = [
            context for context in contexts if context.made < context.watermark - self._needs.lag
        ]
        if behind and not self._needs.past:
            self._make_pairs(behind)
        while behind and self._needs.past:
            # A new context has no past to pad; a long text runs alone, in pieces.
            lone = next(
                (
                    one
                    for one in behind
                    if one.made == 0 or one.watermark - one.made > PASS_TOKENS // 8
                ),
                None,
            )
            self._make_next([lone] if lone is not None else behind)
            behind = [context for context in behind if context.made < context.watermark]

    def entries(self, members: Sequence[tuple[int, int]], room: int = 0) -> Entries:
        """Entries of n members (sequence, number of entries), padded to the longest and by `room`.

        A drafter with a window gets the newest entries alone. A single member with contiguous slots
        gets a view without padding. Entries that are no view are overwritten by the next call.
        """
        spans = [
            (sequence, max(count - (self._drafter.window or count), 0), count)
            for sequence, count in members
        ]
        lengths = torch.tensor(
            [stop - start for _, start, stop in spans], dtype=torch.int64, device=self._device
        )
        longest = max(stop - start for _, start, stop in spans)
        if len(spans) == 1 and isinstance(run := self.pages.slots(*spans[0]), range):
            keys, values = (
                pool[:, run.start : run.stop].unsqueeze(1) for pool in (self._keys, self._values)
            )
            return Entries(keys, values, lengths)
        # Padding is a slot of zeros: masked garbage could still be NaN.
        table = np.full((len(members), longest + room), self._spare, np.int64)
        for row, (sequence, start, stop) in zip(table, spans, strict=True):
            row[: stop - start] = numbers_of(self.pages.slots(sequence, start, stop))
        index = torch.from_numpy(table.ravel()).to(self._device)
        keys, values = (
            self._gathered(name, pool, index)
            for name, pool in (("k", self._keys), ("v", self._values))
        )
        shape = (len(self._keys), *table.shape, *self._keys.shape[2:])
        return Entries(keys.view(shape), values.view(shape), lengths, room)

    def _gathered(self, name: str, pool: Tensor, index: Tensor) -> Tensor:
        if self._device.type != "cpu":
            return pool.index_select(1, index)
        room = self._scratch.room(name, pool, len(pool), len(index), *pool.shape[2:])
        return torch.index_select(pool, 1, index, out=room)

    def rows_at(self, members: Sequence[tuple[int, int]]) -> Tensor:
        """The kept row at each (sequence, position): [n, H]."""
        slots = together(self.pages.slots(sequence, at, at + 1) for sequence, at in members)
        return self._rows.index_select(0, torch.from_numpy(slots).to(self._device))

    def shaper(self, sequence: int, params: SamplingParams, through: int) -> Shaper:
        """The logits shaper of a sequence, having counted token ids below `through`. A missing or
        invalid id makes drafts less like the target's distribution, and does no other harm."""
        context = self[sequence]
        if (
            context.shaper is None
            or context.shaper.params != params
            or context.shaper.length > through
        ):
            context.shaper = Shaper(params)
        return context.shaper.extend(self._known_ids(context, context.shaper.length, through))

    def _known_ids(
        self, context: Context, start: int, stop: int
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        slots = numbers_of(self.pages.slots(context.sequence, start, stop))
        return np.minimum(self._token_ids[slots], self._drafter.config.vocab_size - 1)

    def _make_pairs(self, behind: list[DraftContext]) -> None:
        """Makes entries from rows and the token after each, for all contexts at once."""
        lag = self._needs.lag
        slots, positions, ids = list[Slots](), list[range](), []
        for context in behind:
            stop = context.watermark - lag
            slots.append(self.pages.slots(context.sequence, context.made, stop))
            positions.append(range(context.made, stop))
            ids.append(self._known_ids(context, context.made + lag, stop + lag))
        where = torch.from_numpy(np.stack((together(positions), together(slots)))).to(self._device)
        token_ids = torch.from_numpy(np.concatenate(ids)).to(self._device)
        rows = self._rows.index_select(0, where[1])
        self._drafter.ingest_into(
            ContextTokens(rows, token_ids, where[0]), self._keys, self._values, where[1]
        )
        for context in behind:
            context.made = context.watermark - lag

    def _make_next(self, behind: list[DraftContext]) -> None:
        """Makes the next entries, which depend on earlier ones. Several contexts together must all
        have some already."""
        counts = [min(context.watermark - context.made, PASS_TOKENS) for context in behind]
        ids = np.zeros((len(behind), max(counts)), np.int64)
        slots: list[Slots] = []
        for row, (context, count) in enumerate(zip(behind, counts, strict=True)):
            ids[row, :count] = self._known_ids(context, context.made, context.made + count)
            slots.append(self.pages.slots(context.sequence, context.made, context.made + count))
        made = torch.tensor([context.made for context in behind], device=self._device)
        tokens = ContextTokens(
            None,
            torch.from_numpy(ids).to(self._device),
            made.unsqueeze(1) + torch.arange(ids.shape[1], device=self._device),
        )
        past = (
            self.entries([(context.sequence, context.made) for context in behind])
            if behind[0].made
            else None
        )
        # [L, n, T, Hkv, hd]; padding comes last and is left out
        keys, values = self._drafter.ingest(tokens, past)
        index = torch.from_numpy(together(slots)).to(self._device)
        self._keys.index_copy_(1, index, _unpadded(keys, counts))
        self._values.index_copy_(1, index, _unpadded(values, counts))
        for context, count in zip(behind, counts, strict=True):
            context.made += count


def _unpadded(part: Tensor, counts: Sequence[int]) -> Tensor:
    """[L, n, T, Hkv, hd] -> [L, all counts, Hkv, hd]."""
    return torch.cat([part[:, row, :count] for row, count in enumerate(counts)], dim=1)
