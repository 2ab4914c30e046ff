"""Attention of a chain that is unrolled over a whole text at once.

Every index carries a chain of its own: it sees what step 0 made of all indexes up to its own, and of the later steps
only what it made itself. The second part is a diagonal, so scores of step 0 are a matrix and the others are columns.

Symbols: B rows, T indexes, s steps after step 0, Hq and Hkv heads, hd head size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 512  # indexes whose scores are held at once; longer texts are computed twice instead of being remembered


def unrolled_attention(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], *, scale: float) -> Tensor:
    """query [B, T, Hq, hd] of the newest step, keys and values [B, T, Hkv, hd] of every step so far -> [B, T, Hq*hd].

    Scores and sums in fp32. Holds [B, Hq, T, T + s] numbers for a backward pass, or none of texts past a chunk.
    """
    length = query.shape[1]
    if length <= CHUNK:
        return _chunk(query, *keys, *values, start=0, scale=scale)
    parts = []
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        # No index sees past itself, so later entries of the first step are not even passed.
        seen = [keys[0][:, :stop], *(key[:, start:stop] for key in keys[1:])]
        told = [values[0][:, :stop], *(value[:, start:stop] for value in values[1:])]
        part = query[:, start:stop]
        if torch.is_grad_enabled():
            parts.append(checkpoint(_chunk, part, *seen, *told, start=start, scale=scale, use_reentrant=False))
        else:
            parts.append(_chunk(part, *seen, *told, start=start, scale=scale))
    return torch.cat(parts, dim=1)


def _chunk(query: Tensor, *entries: Tensor, start: int, scale: float) -> Tensor:
    """query [B, Q, Hq, hd] at indexes start .. start + Q - 1; keys of all steps, then values: of step 0 all up to the
    last query, of later steps the queries' own."""
    keys, values = entries[: len(entries) // 2], entries[len(entries) // 2 :]
    batch, count, heads, size = query.shape
    seen, kv_heads = keys[0].shape[1:3]
    wide = query.float().view(batch, count, kv_heads, heads // kv_heads, size) * scale
    with torch.autocast(query.device.type, enabled=False):
        first = torch.einsum("btkgd,bukd->bkgtu", wide, keys[0].float())
        future = torch.ones(count, seen, dtype=torch.bool, device=query.device).triu(1 + start)
        scores = [first.masked_fill(future, -torch.inf)]
        scores += [torch.einsum("btkgd,btkd->bkgt", wide, key.float()).unsqueeze(-1) for key in keys[1:]]
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        out = torch.einsum("bkgtu,bukd->btkgd", weights[..., :seen], values[0].float())
        for step, value in enumerate(values[1:]):
            own = weights[..., seen + step].permute(0, 3, 1, 2).unsqueeze(-1)  # [B, Q, Hkv, G, 1]
            out = out + own * value.float().unsqueeze(3)
    return out.reshape(batch, count, heads * size).to(query.dtype)
