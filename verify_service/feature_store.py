"""Projected feature rows, kept in host memory beside the KV pages, at the same slots.

The kept rows are sent again to fill a new, moved or restarted drafter. Without them the whole
prefix would have to be prefilled again. Rows belong to one projection, named by its fingerprint.

Rows that are not needed at once are owed: their taps are kept and projected many at a time, or when
one of the rows is read. Projecting sixteen rows reads as many weights as projecting hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.model.context import Projection
from dspark.pages import Slots
from dspark.wire import tensors
from dspark.wire.orders import PackedRows

ROW_DTYPE = torch.bfloat16  # precision of features cannot change the distribution of the output
OWED = 256  # most owed rows: a few milliseconds of projection, megabytes of taps


class FeatureStore:
    """Feature rows [num_slots, H]; memory is touched only where rows are written."""

    def __init__(self, num_slots: int, projection: Projection, form: str = "bfloat16") -> None:
        self.form = form  # dtype of rows on the wire; kept rows are bfloat16
        self._projection = projection
        self._rows = torch.empty(num_slots, projection.width, dtype=ROW_DTYPE)
        self._taps: Tensor | None = None  # [OWED, m*H], made for the first owed row
        self._slots = np.zeros(OWED, np.int64)  # slots of the owed rows
        self._owed = 0
        self._place = np.full(num_slots, -1, np.int32)  # index among the owed rows by slot, or -1

    @property
    def width(self) -> int:
        """Width H of a row."""
        return self._projection.width

    @torch.inference_mode()
    def project(self, taps: Tensor | None, count: int) -> Tensor:
        """Projects taps [count, m*H] to rows [count, H] bfloat16 on the CPU. Without taps: rows
        [count, 0], for drafters that need token ids only."""
        if taps is None:
            return torch.empty(count, 0, dtype=ROW_DTYPE)
        return self._projection.project(taps).to("cpu", ROW_DTYPE)

    @torch.inference_mode()
    def under_way(self, taps: Tensor) -> Tensor:
        """Projects taps like `project`, with an asynchronous copy: synchronize the device before
        reading the rows."""
        made = self._projection.project(taps)
        if made.device.type != "cuda":
            return made.to("cpu", ROW_DTYPE)
        return torch.empty(made.shape, dtype=ROW_DTYPE, pin_memory=True).copy_(
            made, non_blocking=True
        )

    def put(self, slots: Slots | Sequence[int], rows: Tensor) -> None:
        """Stores rows [n, H] at n slots."""
        if self._owed:
            self._place[_numbers(slots)] = -1
        self._rows[_index(slots)] = rows

    @torch.inference_mode()
    def put_later(self, slots: Slots | Sequence[int], taps: Tensor | None) -> None:
        """Copies taps [n, m*H] and owes their rows; more than OWED are projected at once."""
        count = len(slots)
        if taps is None or count > OWED:
            self.put(slots, self.project(taps, count))
            return
        if self._owed + count > OWED:
            self._pay()
        if self._taps is None:
            self._taps = taps.new_empty(OWED, taps.shape[1])
        place = slice(self._owed, self._owed + count)
        self._taps[place] = taps
        self._slots[place] = where = _numbers(slots)
        self._place[where] = np.arange(place.start, place.stop)
        self._owed += count

    def get(self, slots: Slots | Sequence[int]) -> Tensor:
        """A copy of the rows at these slots, [n, H]."""
        if self._owed and (self._place[_numbers(slots)] >= 0).any():
            self._pay()
        index = _index(slots)
        return self._rows[index].clone() if isinstance(index, slice) else self._rows[index]

    def packed(self, slots: Slots | Sequence[int]) -> PackedRows:
        """The rows at these slots, packed for the wire."""
        dtype, data = tensors.pack_rows(self.get(slots), self.form)
        return PackedRows(dtype, len(slots), self.width, data)

    def _pay(self) -> None:
        """Projects owed rows, except at slots written since. If it raises, they stay owed."""
        assert self._taps is not None
        slots, taps = self._slots[: self._owed], self._taps[: self._owed]
        due = np.flatnonzero(self._place[slots] == np.arange(self._owed))
        if len(due) < len(taps):
            slots, taps = slots[due], taps[torch.from_numpy(due).to(taps.device)]
        if len(due):
            self._rows[torch.from_numpy(slots)] = self.project(taps, len(due))
        self._place[slots] = -1  # all other slots have been written since
        self._owed = 0


def _numbers(slots: Slots | Sequence[int]) -> npt.NDArray[np.int64]:
    return np.asarray(slots, np.int64)


def _index(slots: Slots | Sequence[int]) -> slice | Tensor:
    return (
        slice(slots.start, slots.stop)
        if isinstance(slots, range)
        else torch.as_tensor(slots, dtype=torch.int64)
    )
