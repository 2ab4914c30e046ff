"""Projected feature rows, kept in host memory beside the key-value pages, at the same slots.

With them a lost, new or moved drafter is filled by sending again; without them the whole prefix
would have to be prefilled once more. Rows belong to one projection, named by its fingerprint.

Rows that nobody waits for are owed: their taps lie by, and are projected many at a time, or when
somebody asks. A projection of sixteen rows reads as many weights as one of hundreds.
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
OWED = 256  # rows at most: a few milliseconds of a projection, and megabytes of taps


class FeatureStore:
    """[num_slots, H]; memory is touched only where rows are written."""

    def __init__(self, num_slots: int, projection: Projection, form: str = "bfloat16") -> None:
        self.form = form  # in which rows leave; kept ones are bfloat16
        self._projection = projection
        self._rows = torch.empty(num_slots, projection.width, dtype=ROW_DTYPE)
        self._taps: Tensor | None = None  # [OWED, m*H] of owed rows, made when the first one is
        self._slots = np.zeros(OWED, np.int64)  # theirs
        self._owed = 0
        self._place = np.full(num_slots, -1, np.int32)  # among the owed rows, by slot

    @property
    def width(self) -> int:
        """Of a row."""
        return self._projection.width

    @torch.inference_mode()
    def project(self, taps: Tensor | None, count: int) -> Tensor:
        """taps [count, m*H] -> rows [count, H] bfloat16 on the CPU. No taps: rows without a width,
        for token ids."""
        if taps is None:
            return torch.empty(count, 0, dtype=ROW_DTYPE)
        return self._projection.project(taps).to("cpu", ROW_DTYPE)

    @torch.inference_mode()
    def under_way(self, taps: Tensor) -> Tensor:
        """The same rows on their way to the host: they are there once the device has been waited
        for."""
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
        """Owes the rows of taps [n, m*H], which are copied."""
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
        """The rows at these slots, as they travel."""
        dtype, data = tensors.pack_rows(self.get(slots), self.form)
        return PackedRows(dtype, len(slots), self.width, data)

    def _pay(self) -> None:
        """Projects what is owed, but for slots that were written since. If that fails, it is owed
        still."""
        assert self._taps is not None
        slots, taps = self._slots[: self._owed], self._taps[: self._owed]
        due = np.flatnonzero(self._place[slots] == np.arange(self._owed))
        if len(due) < len(taps):
            slots, taps = slots[due], taps[torch.from_numpy(due).to(taps.device)]
        if len(due):
            self._rows[torch.from_numpy(slots)] = self.project(taps, len(due))
        self._place[slots] = -1  # the others have been written and say so
        self._owed = 0


def _numbers(slots: Slots | Sequence[int]) -> npt.NDArray[np.int64]:
    return np.asarray(slots, np.int64)


def _index(slots: Slots | Sequence[int]) -> slice | Tensor:
    return (
        slice(slots.start, slots.stop)
        if isinstance(slots, range)
        else torch.as_tensor(slots, dtype=torch.int64)
    )
