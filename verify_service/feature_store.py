"""Projected feature rows, kept in host memory beside the key-value pages, at the same slots.

With them a lost, new or moved drafter is filled by sending again; without them the whole prefix would have to be
prefilled once more. Rows belong to one projection, named by its fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dspark.wire import tensors
from dspark.wire.v1 import types_pb2
from verify_service.page_pool import Slots

ROW_DTYPE = torch.bfloat16  # precision of features cannot change the law of the output


@dataclass(frozen=True, slots=True)
class FeatureRows:
    """Rows of consecutive positions of one sequence, with the token at each."""

    sequence: int
    epoch: int
    start: int
    token_ids: list[int]
    rows: Tensor  # [rows, H] bfloat16 on the CPU
    form: str = "bfloat16"  # in which they travel

    def message(self, first: int, last: int) -> types_pb2.TensorChunk:
        """Rows first .. last - 1 as they travel."""
        return tensors.write_rows(self.rows[first:last], self.form)


class FeatureStore:
    """[num_slots, H]; memory is touched only where rows are written."""

    def __init__(self, num_slots: int, width: int, projection: str, form: str = "bfloat16") -> None:
        self.projection = projection
        self.width = width
        self.form = form  # in which rows leave; kept ones are bfloat16
        self._rows = torch.empty(num_slots, width, dtype=ROW_DTYPE)

    def put(self, slots: Slots | Sequence[int], rows: Tensor) -> None:
        """Stores rows [n, H] at n slots."""
        self._rows[_index(slots)] = rows

    def get(self, slots: Slots | Sequence[int]) -> Tensor:
        """A copy of the rows at these slots, [n, H]."""
        return self._rows[_index(slots)].clone()


def _index(slots: Slots | Sequence[int]) -> slice | Tensor:
    return slice(slots.start, slots.stop) if isinstance(slots, range) else torch.as_tensor(slots, dtype=torch.int64)
