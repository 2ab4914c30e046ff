"""Tensors of keys and values for every token slot, layer by layer.

Symbols: Hkv heads, D head size, T tokens of a pass, R rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dspark.model.scratch import Scratch

ALIGNMENT = 64  # bytes, of torch's own tensors


class KeyValuePool:
    """Keys and values of every layer: [num_slots, Hkv, D] each, made when a layer first writes.

    Memory is allocated whole and touched only where tokens are written. With `by_head` it is stored
    as [Hkv, num_slots, D] and returned as a view. A head's keys are then contiguous, as attention
    on a CPU reads them.
    """

    def __init__(self, num_slots: int, page_size: int = 1, *, by_head: bool = False) -> None:
        self.page_size = page_size  # for kernels that read pages in place; divides num_slots
        self._num_slots, self._by_head = num_slots, by_head
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch = Scratch()  # for gathered rows, reused by every layer

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Key and value pool of a layer with new keys and values [T, Hkv, D]."""
        pools = self._layers.get(index)
        if pools is None:
            pools = (self._empty(key), self._empty(value))
            self._layers[index] = pools
        return pools

    def gather(self, which: str, rows: Tensor, index: Tensor, members: int) -> Tensor:
        """Gathers rows [num_slots, Hkv, D] at index [n * S] for n members; returns [n, Hkv, S, D].
        The next call with the same `which` may overwrite it."""
        heads, size = rows.shape[1:]
        if self._by_head:
            out = self._scratch.room(which, rows, heads, len(index), size)
            torch.index_select(rows.transpose(0, 1), 1, index, out=out)
            return out.view(heads, members, -1, size).transpose(0, 1)
        return rows.index_select(0, index).view(members, -1, heads, size).transpose(1, 2)

    def fill(self, slots: Tensor) -> None:
        """Writes ordinary numbers into unused slots, so that a timed pass reads no garbage."""
        for pools in self._layers.values():
            for pool in pools:
                pool[slots] = torch.full_like(pool[:1], 0.5)

    def reset(self) -> None:
        """Frees all memory; only when no sequence holds slots."""
        self._layers.clear()
        self._scratch.clear()

    def _empty(self, like: Tensor) -> Tensor:
        slots, (heads, size) = self._num_slots, like.shape[1:]
        if self._by_head:
            return _zeros(like, heads, slots, size).transpose(0, 1)
        return _zeros(like, slots, heads, size)


def _zeros(like: Tensor, *shape: int) -> Tensor:
    """Zeros that take no memory of a host before they are written: numpy asks the system for clean
    pages, where torch writes them all."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    size = math.prod(shape) * like.itemsize
    memory = torch.from_numpy(np.zeros(size + ALIGNMENT, np.uint8))
    return memory[-memory.data_ptr() % ALIGNMENT :][:size].view(like.dtype).view(shape)
