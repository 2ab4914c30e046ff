"""Blocks over contexts where they are kept, in pages: by the kernels for CPUs, a layer in one call where it can be.

Symbols: `drafter.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark.model.attention import Attention, Projected
from dspark.model.family import PagedEntries
from dspark.native.attention import PagedAttention, Tables
from dspark.native.decoder_layer import OnePass, WholeLayer

if TYPE_CHECKING:
    from dspark.model.drafter import BlockDrafter, BlockProposal


class BlocksOverPages:
    """`BlockDrafter.propose` without a copy of the context. Its weights must not change any more."""

    def __init__(self, drafter: BlockDrafter, kernel: PagedAttention) -> None:
        self._drafter, self._kernel = drafter, kernel
        whole = [layer.as_one_call() for layer in drafter.draft_layers()]
        self._whole: list[WholeLayer] = [layer for layer in whole if layer is not None]
        self.in_one_call = len(self._whole) == len(whole)

    @staticmethod
    def of(drafter: BlockDrafter) -> BlocksOverPages | None:
        """Where there are kernels for it."""
        like = drafter.embed_tokens.weight
        kernel = PagedAttention.for_blocks() if like.device.type == "cpu" and like.dtype == torch.float32 else None
        return BlocksOverPages(drafter, kernel) if kernel is not None else None

    def __call__(
        self, *, anchor_ids: Tensor, anchor_positions: Tensor, context: PagedEntries, slots: int
    ) -> BlockProposal:
        n, size = len(anchor_ids), self._drafter.room(slots)
        first = torch.arange(0, n * size + 1, size, dtype=torch.int32)
        tables = Tables(first, context.lengths, context.blocks, size, context.longest)
        inputs = self._drafter.block_inputs(anchor_ids, anchor_positions, size)
        run = self._by_layers if self.in_one_call else self._by_parts
        return self._drafter.proposal(run(*inputs, context, tables)[:, -slots:])

    def _by_layers(self, hidden: Tensor, angles: Tensor, context: PagedEntries, tables: Tables) -> Tensor:
        """hidden [n, q, H], angles [n, q, hd] -> [n, q, H] after the final norm."""
        cos, sin = angles.flatten(0, 1).chunk(2, dim=-1)
        told = OnePass(None, tables, context.keys.shape[2], (cos, sin))
        rows = hidden.flatten(0, 1)
        for layer, keys, values in zip(self._whole, context.keys, context.values, strict=True):
            rows = layer(rows, keys.flatten(0, 1), values.flatten(0, 1), told)
        out: Tensor = self._drafter.norm(rows.view(hidden.shape))
        return out

    def _by_parts(self, hidden: Tensor, angles: Tensor, context: PagedEntries, tables: Tables) -> Tensor:
        def attend(layer: int, attention: Attention, block: Projected) -> Tensor:
            query, *own = (part.flatten(0, 1) for part in block)
            keys, values = context.keys[layer], context.values[layer]
            out = self._kernel(query, keys, values, tables, attention.scale, own=(own[0], own[1]))
            return attention.output(out.view(*hidden.shape[:2], -1))

        return self._drafter.through_layers(hidden, angles, attend)
