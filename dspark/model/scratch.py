"""Reused memory for results that are read once: on a CPU fresh memory of their size costs more than
the copy into it.

Very large results, for which that is not true, get memory of their own.
"""

from __future__ import annotations

import math

from torch import Tensor

KEPT_UP_TO = 64 << 20  # numbers


class Scratch:
    """Buffers by name; the next result of a name overwrites the one before it. For one thread."""

    def __init__(self) -> None:
        self._rooms: dict[str, Tensor] = {}

    def room(self, name: str, like: Tensor, *shape: int) -> Tensor:
        """An uninitialised buffer of this shape, with the device and dtype of `like`."""
        count = math.prod(shape)
        if count > KEPT_UP_TO:
            return like.new_empty(*shape)
        room = self._rooms.get(name)
        if (
            room is None
            or room.numel() < count
            or (room.dtype, room.device) != (like.dtype, like.device)
        ):
            room = self._rooms[name] = like.new_empty(count + count // 4)
        return room[:count].view(shape)

    def clear(self) -> None:
        self._rooms.clear()
