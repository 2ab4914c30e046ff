"""The largest numbers of rows, see `ranking.c`: several times faster on a CPU than torch's search.

Tried against torch's own before its first use: what comes out wrong is not used.
"""

from __future__ import annotations

import functools

import structlog
import torch
from torch import Tensor

from dspark.native.compiled import kernels

log = structlog.get_logger("dspark.native")

LONGEST = 32  # numbers of a stretch, of which there have to be k


def top(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """rows [n, V] -> the k largest of each and where they are, [n, k] and [n, k] int64, largest first.

    Among equals the lower place comes first where the kernel does it (fp32 on a CPU, nothing to differentiate). Of a
    row with what is no number it may give other places than torch, but always places of that row.
    """
    serves = rows.device.type == "cpu" and rows.dtype == torch.float32 and not rows.requires_grad
    if serves and 0 < k <= rows.shape[1] and available():
        found = _found(rows.contiguous(), k)
        if found is not None:
            return found
    values, places = rows.topk(k, dim=-1)
    return values, places


def _found(rows: Tensor, k: int) -> tuple[Tensor, Tensor] | None:
    """None where too little is a number."""
    built = kernels()
    assert built is not None
    count, width = rows.shape
    wide = max(min(LONGEST, width // (2 * k)), 1)
    values, places = rows.new_empty(count, k), torch.empty(count, k, dtype=torch.int64)
    peaks, keys = rows.new_empty(-(-width // wide)), torch.empty(width, dtype=torch.int64)
    pointers = (values.data_ptr(), places.data_ptr(), rows.data_ptr())
    done = built.dspark_largest(*pointers, count, width, k, wide, peaks.data_ptr(), keys.data_ptr())
    return (values, places) if done == count else None


@functools.cache
@torch.inference_mode()
def available() -> bool:
    """Whether the library is there and finds what torch finds."""
    if kernels() is None:
        return False
    draw = torch.Generator().manual_seed(3)
    for width, k in ((1000, 64), (70, 64), (64, 64), (300, 1)):
        rows = torch.randn(3, width, generator=draw)
        found, right = _found(rows, k), rows.topk(k, dim=-1)
        if found is None or not (torch.equal(found[0], right.values) and torch.equal(found[1], right.indices)):
            log.warning("native.not_used", reason="a trial of the largest came out wrong")
            return False
    return True
