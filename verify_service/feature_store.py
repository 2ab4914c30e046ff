"""Feature rows, kept in host memory beside the KV pages, at the same slots.

The kept rows are sent again to fill a new, moved or restarted drafter. Without them the whole
prefix would have to be prefilled again. Rows belong to one projection, named by its fingerprint.

Rows that may never be read are owed: their taps are kept, and projected when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.model.context import Projection
from dspark.pages import Slots, numbers_of
from dspark.wire import tensors
from dspark.wire.orders import PackedRows

ROW_DTYPE = torch.bfloat16  # precision of features cannot change the distribution of the output
PART = 256  # most owed rows that are projected at once, as a copy of their taps is made


class FeatureStore:
    """Feature rows [num_slots, H]; memory is touched only where rows are written."""

    def __init__(self, num_slots: int, projection: Projection, form: str = "bfloat16") -> None:
        self.form = form  # dtype of rows on the wire; kept rows are bfloat16
        self._projection = projection
        self._rows = torch.empty(num_slots, projection.width, dtype=ROW_DTYPE)
        # bytes of taps [num_slots, m*H], made for the first owed row. Not a tensor: the next pass
        # waits for the copy, and numpy begins one of a few rows sooner.
        self._taps: npt.NDArray[np.uint8] | None = None
        self._of_taps = ROW_DTYPE  # dtype of these
        self._owed = np.zeros(num_slots, np.bool_)

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
        self._rows[_index(slots)] = rows
        self._owed[numbers_of(slots)] = False

    @torch.inference_mode()
    def put_later(self, slots: Slots | Sequence[int], taps: Tensor | None) -> None:
        """Copies taps [n, m*H] and owes their rows."""
        if taps is None:
            return  # rows without a width
        values, numbers = taps.view(torch.uint8).numpy(), numbers_of(slots)
        if self._taps is None:
            self._taps = np.empty((len(self._rows), values.shape[1]), np.uint8)
            self._of_taps = taps.dtype
        self._taps[numbers] = values
        self._owed[numbers] = True

    @torch.inference_mode()
    def get(self, slots: Slots | Sequence[int]) -> Tensor:
        """A copy of the rows at these slots, [n, H]. If a projection raises, rows stay owed."""
        numbers, index = numbers_of(slots), _index(slots)
        owed = numbers[self._owed[numbers]]
        for start in range(0, len(owed), PART):
            part = owed[start : start + PART]
            assert self._taps is not None
            taps = torch.from_numpy(self._taps[part]).view(self._of_taps)
            self.put(part, self.project(taps, len(part)))
        return self._rows[index].clone() if isinstance(index, slice) else self._rows[index]

    def packed(self, slots: Slots | Sequence[int]) -> PackedRows:
        """The rows at these slots, packed for the wire."""
        dtype, data = tensors.pack_rows(self.get(slots), self.form)
        return PackedRows(dtype, len(slots), self.width, data)


def _index(slots: Slots | Sequence[int]) -> slice | Tensor:
    return (
        slice(slots.start, slots.stop)
        if isinstance(slots, range)
        else torch.as_tensor(slots, dtype=torch.int64)
    )
