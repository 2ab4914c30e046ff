"""Weights stored in few bits beside their scales, as the numbers they stand for.

    float8 e4m3    one scale per block of 128 x 128 values; blocks at an edge are short
    bytes          two e2m1 values each along the input, the low four bits first; one scale per 32 values of a row

With scales that are powers of two every value is exact in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

SQUARE, ROW = 128, 32
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def values(stored: Tensor, scale: Tensor) -> Tensor:
    """The numbers, [out, in] bfloat16, of a weight as it is stored and its scale."""
    factors = scale.float()
    if stored.dtype in (torch.int8, torch.uint8):
        table = torch.tensor([*_E2M1, *(-value for value in _E2M1)])
        codes = stored.view(torch.uint8).int()
        both = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
        return (table[both] * factors.repeat_interleave(ROW, dim=-1)).bfloat16()
    rows, columns = stored.shape
    spread = factors.repeat_interleave(SQUARE, 0)[:rows].repeat_interleave(SQUARE, 1)[:, :columns]
    return (stored.float() * spread).bfloat16()
