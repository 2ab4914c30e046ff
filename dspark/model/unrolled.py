"""Attention of a chain that is unrolled over a whole text at once.

Every index carries a chain of its own: it sees what step 0 made of all indexes up to its own, and of the later steps
only what it made itself. The second part is a diagonal, so scores of step 0 are a matrix and the others are columns.

Symbols: B rows, T indexes, s steps after step 0, Hq and Hkv heads, hd head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unrolled_attention(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], *, scale: float) -> Tensor:
    """query [B, T, Hq, hd] of the newest step, keys and values [B, T, Hkv, hd] of every step so far -> [B, T, Hq*hd].

    Scores and sums in fp32. Holds [B, Hq, T, T + s] numbers.
    """
    batch, length, heads, size = query.shape
    kv_heads = keys[0].shape[2]
    wide = query.float().view(batch, length, kv_heads, heads // kv_heads, size) * scale
    with torch.autocast(query.device.type, enabled=False):
        first = torch.einsum("btkgd,bukd->bkgtu", wide, keys[0].float())
        future = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
        scores = [first.masked_fill(future, -torch.inf)]
        scores += [torch.einsum("btkgd,btkd->bkgt", wide, key.float()).unsqueeze(-1) for key in keys[1:]]
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        out = torch.einsum("bkgtu,bukd->btkgd", weights[..., :length], values[0].float())
        for step, value in enumerate(values[1:]):
            own = weights[..., length + step].permute(0, 3, 1, 2).unsqueeze(-1)  # [B, T, Hkv, G, 1]
            out = out + own * value.float().unsqueeze(3)
    return out.reshape(batch, length, heads * size).to(query.dtype)
