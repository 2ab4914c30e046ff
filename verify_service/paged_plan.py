"""Plan of a pass whose kernel reads pages in place: token rows, sequence boundaries, a page table.

The plan may be larger than its pass. The padding is a sequence of its own that reads and writes a
spare page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dspark.native.attention import Tables
from dspark.pages import numbers_of
from verify_service.kernels import Kernel
from verify_service.plan import PassPlan, Segment

Ints = npt.NDArray[np.integer[Any]]


class PlanShape(NamedTuple):
    """Size of a pass: tokens, sequences, pages and queries of the largest sequence."""

    tokens: int
    sequences: int
    pages: int
    queries: int


def exact_shape(segments: Sequence[Segment], page_size: int) -> PlanShape:
    """The shape of a pass without padding."""
    counts = [len(segment.token_ids) for segment in segments]
    pages = max(-(-segment.length // page_size) for segment in segments)
    return PlanShape(sum(counts), len(segments), pages, max(counts))


class Arrays(NamedTuple):
    """Inputs of one pass, padded to a shape of T tokens, N sequences and P pages."""

    rows: Ints  # [3, T]: token ids, positions, slots
    sizes: Ints  # [2 N + 1]: boundaries of the sequences' queries, then the keys of each
    blocks: Ints  # [N, P]

    def on(self, device: torch.device) -> DeviceInputs:
        """Copies them to the device."""
        return DeviceInputs(*(torch.from_numpy(each).to(device) for each in self))


class DeviceInputs(NamedTuple):
    """`Arrays` on a device."""

    rows: Tensor
    sizes: Tensor
    blocks: Tensor

    def plan(
        self, shape: PlanShape, kernel: Kernel, page_size: int, run: slice | None = None
    ) -> PassPlan:
        """The plan of a pass of this shape. run: the slots written, if they are consecutive."""
        cu_q, used_k = self.sizes[: shape.sequences + 1], self.sizes[shape.sequences + 1 :]
        tables = Tables(cu_q, used_k, self.blocks, shape.queries, shape.pages * page_size)
        ids, positions, slots = self.rows[0:1], self.rows[1:2], self.rows[2]
        return PassPlan(ids, positions, slots, run, [], tables=tables, kernel=kernel)


def arrays_of(
    segments: Sequence[Segment], shape: PlanShape, page_size: int, spare_page: int
) -> Arrays:
    """Builds the padded inputs of segments; their slots start at the beginning of a page."""
    made = Arrays(
        np.zeros((3, shape.tokens), np.int64),
        np.zeros(2 * shape.sequences + 1, np.int32),
        np.full((shape.sequences, shape.pages), spare_page, np.int32),
    )
    made.rows[2] = spare_page * page_size
    cu_q, used_k = made.sizes[: shape.sequences + 1], made.sizes[shape.sequences + 1 :]
    at = 0
    for n, segment in enumerate(segments):
        stop = at + len(segment.token_ids)
        made.rows[0, at:stop] = segment.token_ids
        made.rows[1, at:stop] = np.arange(segment.start, segment.length)
        made.rows[2, at:stop] = segment.slots[segment.start : segment.length]
        pages = numbers_of(segment.slots[: segment.length : page_size]) // page_size
        made.blocks[n, : len(pages)] = pages
        used_k[n] = segment.length
        cu_q[n + 1 :] = stop
        at = stop
    if at < shape.tokens:  # the padding is a sequence of its own
        used_k[len(segments)] = min(shape.tokens - at, shape.pages * page_size)
        cu_q[len(segments) + 1 :] = shape.tokens
    return made
