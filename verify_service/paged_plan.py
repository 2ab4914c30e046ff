"""Plan of a pass whose kernel reads pages in place: token rows, sequence boundaries, a page table.

The plan may be larger than its pass. The padding is a sequence of its own that reads and writes a
spare page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dspark.native.attention import Tables
from dspark.pages import numbers_of
from verify_service.kernels import Kernel
from verify_service.plan import PassPlan, Segment

Ints = npt.NDArray[np.int64]


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
    cu_q: Ints  # [N + 1]
    used_k: Ints  # [N]
    blocks: Ints  # [N, P]


def arrays_of(
    segments: Sequence[Segment], shape: PlanShape, page_size: int, spare_page: int
) -> Arrays:
    """Builds the padded inputs of segments; their slots start at the beginning of a page."""
    made = Arrays(
        np.zeros((3, shape.tokens), np.int64),
        np.zeros(shape.sequences + 1, np.int64),
        np.zeros(shape.sequences, np.int64),
        np.full((shape.sequences, shape.pages), spare_page, np.int64),
    )
    made.rows[2] = spare_page * page_size
    at = 0
    for n, segment in enumerate(segments):
        stop = at + len(segment.token_ids)
        made.rows[0, at:stop] = segment.token_ids
        made.rows[1, at:stop] = np.arange(segment.start, segment.length)
        made.rows[2, at:stop] = segment.slots[segment.start : segment.length]
        pages = numbers_of(segment.slots[: segment.length : page_size]) // page_size
        made.blocks[n, : len(pages)] = pages
        made.used_k[n] = segment.length
        made.cu_q[n + 1 :] = stop
        at = stop
    if at < shape.tokens:  # the padding is a sequence of its own
        made.used_k[len(segments)] = min(shape.tokens - at, shape.pages * page_size)
        made.cu_q[len(segments) + 1 :] = shape.tokens
    return made


def paged_plan(
    made: Arrays,
    shape: PlanShape,
    kernel: Kernel,
    page_size: int,
    device: torch.device,
    run: slice | None = None,
) -> PassPlan:
    """Copies the inputs to the device. run: the slots written, if they are consecutive."""
    rows = torch.from_numpy(made.rows).to(device)
    cu_q, used_k, blocks = (
        torch.from_numpy(each.astype(np.int32)).to(device)
        for each in (made.cu_q, made.used_k, made.blocks)
    )
    tables = Tables(cu_q, used_k, blocks, shape.queries, shape.pages * page_size)
    return PassPlan(rows[0:1], rows[1:2], rows[2], run, [], tables=tables, kernel=kernel)
