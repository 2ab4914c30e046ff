"""Keys and values of every token slot, layer by layer. Knows tensors and slots, nothing of who
holds them.

Symbols: Hkv heads, D head size, T tokens of a pass, R rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.model.scratch import Scratch


class KeyValuePool:
    """Keys and values of every layer: [num_slots, Hkv, D] each, made when a layer first writes.

    Memory is asked for whole and touched only where tokens are written. With `by_head` it lies as
    [Hkv, num_slots, D] and what is handed out is a view: a head's keys then lie side by side, which
    is how attention on a CPU reads them.
    """

    def __init__(self, num_slots: int, page_size: int = 1, *, by_head: bool = False) -> None:
        self.page_size = page_size  # of kernels that read pages in place; num_slots is a multiple
        self._num_slots, self._by_head = num_slots, by_head
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._scratch = Scratch()  # of gathered rows, used by one layer after the other

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The pools of a layer whose new keys and values are [T, Hkv, D]."""
        pools = self._layers.get(index)
        if pools is None:
            pools = (self._empty(key), self._empty(value))
            self._layers[index] = pools
        return pools

    def gather(self, which: str, rows: Tensor, index: Tensor, members: int) -> Tensor:
        """rows [num_slots, Hkv, D] at index [n * S] of n members: [n, Hkv, S, D], a view of room
        that the next call with this name overwrites."""
        heads, size = rows.shape[1:]
        if self._by_head:
            out = self._scratch.room(which, rows, heads, len(index), size)
            torch.index_select(rows.transpose(0, 1), 1, index, out=out)
            return out.view(heads, members, -1, size).transpose(0, 1)
        if rows.device.type == "cpu":
            out = torch.index_select(
                rows, 0, index, out=self._scratch.room(which, rows, len(index), heads, size)
            )
        else:
            out = rows.index_select(0, index)
        return out.view(members, -1, heads, size).transpose(1, 2)

    def fill(self, slots: Tensor) -> None:
        """Ordinary numbers into slots that nothing wrote, so that a timed pass reads no garbage."""
        for pools in self._layers.values():
            for pool in pools:
                pool[slots] = torch.full_like(pool[:1], 0.5)

    def reset(self) -> None:
        """Lets go of all memory; only when no sequence holds slots."""
        self._layers.clear()
        self._scratch.clear()

    def _empty(self, like: Tensor) -> Tensor:
        slots, (heads, size) = self._num_slots, like.shape[1:]
        if self._by_head:
            return like.new_zeros(heads, slots, size).transpose(0, 1)
        return like.new_zeros(slots, heads, size)
