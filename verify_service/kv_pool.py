"""Keys and values of every token slot, layer by layer. Knows tensors and slots, nothing of who holds them.

Symbols: Hkv heads, D head size, T tokens of a pass, R rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValuePool:
    """Keys and values of every layer: [num_slots, Hkv, D] each, made when a layer first writes.

    Memory is asked for whole and touched only where tokens are written.
    """

    def __init__(self, num_slots: int, page_size: int = 1) -> None:
        self.page_size = page_size  # of kernels that read pages in place; num_slots is a multiple
        self._num_slots = num_slots
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._gathered: dict[
            tuple[str, int, int], Tensor
        ] = {}  # room for gathered rows, used by one layer after the other

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The pools of a layer whose new keys and values are [T, Hkv, D]."""
        pools = self._layers.get(index)
        if pools is None:
            pools = (self._empty(key), self._empty(value))
            self._layers[index] = pools
        return pools

    def gather(self, which: str, rows: Tensor, index: Tensor) -> Tensor:
        """rows [num_slots, Hkv, D] at index [R]: a view [R, Hkv, D] that the next call with this name overwrites.

        On a CPU fresh memory of that size costs more than the copy into it.
        """
        if rows.device.type != "cpu":
            return rows.index_select(0, index)
        key, count = (which, rows.shape[1], rows.shape[2]), index.shape[0]
        room = self._gathered.get(key)
        if room is None or room.shape[0] < count or room.dtype != rows.dtype:
            room = self._gathered[key] = rows.new_empty(count + count // 4, *rows.shape[1:])
        return torch.index_select(rows, 0, index, out=room[:count])

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Rows at some slots [R] into those at others, in every layer."""
        for pools in self._layers.values():
            for pool in pools:
                pool.index_copy_(0, target, pool.index_select(0, source))

    def fill(self, slots: Tensor) -> None:
        """Ordinary numbers into slots that nothing wrote, so that a timed pass reads no garbage."""
        for pools in self._layers.values():
            for pool in pools:
                pool[slots] = torch.full_like(pool[:1], 0.5)

    def reset(self) -> None:
        """Lets go of all memory; only when no sequence holds slots."""
        self._layers.clear()
        self._gathered.clear()

    def _empty(self, like: Tensor) -> Tensor:
        return torch.zeros(self._num_slots, like.shape[1], like.shape[2], dtype=like.dtype, device=like.device)
