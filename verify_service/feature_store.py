"""Feature rows, kept in host memory beside the KV pages, at the same slots.

The kept rows are sent again to fill a new, moved or restarted drafter. Without them the whole
prefix would have to be prefilled again. Rows belong to one projection, named by its fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dspark.model.context import Projection
from dspark.pages import Slots
from dspark.wire import tensors
from dspark.wire.finite import finite
from dspark.wire.orders import PackedRows

ROW_DTYPE = torch.bfloat16  # precision of features cannot change the distribution of the output


class FeatureStore:
    """Feature rows [num_slots, H]; memory is touched only where rows are written."""

    def __init__(self, num_slots: int, projection: Projection, form: str = "bfloat16") -> None:
        self.form = form  # dtype of rows on the wire; kept rows are bfloat16
        self._projection = projection
        self._rows = torch.empty(num_slots, projection.width, dtype=ROW_DTYPE)

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

    def get(self, slots: Slots | Sequence[int]) -> Tensor:
        """A copy of the rows at these slots, [n, H]."""
        index = _index(slots)
        return self._rows[index].clone() if isinstance(index, slice) else self._rows[index]

    def packed(self, slots: Slots | Sequence[int]) -> PackedRows:
        """The rows at these slots, packed for the wire. One that is not finite is packed as zeros:
        it spoils its own sequence's drafts, while a drafter refuses it with all that it came with.
        """
        rows, zeroed = self.get(slots), 0
        if not finite("bfloat16", rows.view(torch.uint16).numpy()):
            wrong = ~torch.isfinite(rows).all(dim=-1)
            rows[wrong], zeroed = 0.0, int(wrong.sum())
        dtype, data = tensors.pack_rows(rows, self.form)
        return PackedRows(dtype, len(slots), self.width, data, zeroed)


def _index(slots: Slots | Sequence[int]) -> slice | Tensor:
    return (
        slice(slots.start, slots.stop)
        if isinstance(slots, range)
        else torch.as_tensor(slots, dtype=torch.int64)
    )
