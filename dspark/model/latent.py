"""Attention of a DeepSeek-V4 stage: one head of keys, which are the values too, read by many heads of queries.

The last values of a head rotate, in neighbouring pairs; what comes out of attention carries the rotation of the keys
and is turned back. A sink per head takes its share of the weights and gives nothing. The output projection has low rank
within groups of heads.

Symbols: n sequences, q slots of a block, S context rows, Hq heads, hd head size, R rotating values.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.model.config import DrafterConfig
from dspark.model.rotary import RMSNorm, rms_norm


class LatentAttention(nn.Module):
    """Keys of context rows come from the same projection as those of the block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        shape = config.stage
        assert shape is not None
        size, heads, head_dim, eps = (
            config.hidden_size,
            config.num_attention_heads,
            config.head_dim,
            config.rms_norm_eps,
        )
        self._heads, self._head_dim, self._groups, self._eps = heads, head_dim, shape.o_groups, eps
        self.wq_a = nn.Linear(size, shape.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(shape.q_lora_rank, eps, late_cast=True)
        self.wq_b = nn.Linear(shape.q_lora_rank, heads * head_dim, bias=False)
        self.wkv = nn.Linear(size, head_dim, bias=False)
        self.kv_norm = RMSNorm(head_dim, eps, late_cast=True)
        self.wo_a = nn.Linear(heads * head_dim // shape.o_groups, shape.o_groups * shape.o_lora_rank, bias=False)
        self.wo_b = nn.Linear(shape.o_groups * shape.o_lora_rank, size, bias=False)
        self.attn_sink = nn.Parameter(torch.empty(heads))

    def keys(self, rows: Tensor, angles: Tensor) -> Tensor:
        """rows [..., H], angles [..., R] (cos | sin) -> [..., hd]."""
        return turn(self.kv_norm(self.wkv(rows)), angles)

    def forward(self, x: Tensor, context: Tensor, visible: Tensor, angles: Tensor) -> Tensor:
        """x [n, q, H], keys of the context [n, S, hd], which of them count [n, S], angles [n, q, R] of
        the block -> [n, q, H]. Every slot sees all of the block."""
        n, slots = x.shape[:2]
        query = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self._heads, self._head_dim))
        query = turn(rms_norm(query, None, self._eps), angles.unsqueeze(-2))  # [n, q, Hq, hd]
        keys = torch.cat((context, self.keys(x, angles)), dim=1)
        scores = torch.einsum("nqhd,nsd->nhqs", query, keys).float() * self._head_dim**-0.5
        hidden = torch.nn.functional.pad(~visible, (0, slots), value=False)
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        sink = self.attn_sink.float().view(1, -1, 1, 1).expand(n, -1, slots, 1)
        weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1].to(keys.dtype)
        out = torch.einsum("nhqs,nsd->nqhd", weights, keys)
        cos, sin = angles.chunk(2, dim=-1)
        out = turn(out, torch.cat((cos, -sin), dim=-1).unsqueeze(-2))
        grouped = out.reshape(n, slots, self._groups, -1)
        low = torch.einsum("nqgi,gri->nqgr", grouped, self.wo_a.weight.view(self._groups, -1, grouped.shape[-1]))
        attended: Tensor = self.wo_b(low.flatten(-2))
        return attended


def turn(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates pairs (2i, 2i + 1) of the last R values of x [..., hd] by angles [..., R] (cos | sin)."""
    count = angles.shape[-1]
    cos, sin = angles.chunk(2, dim=-1)
    still, moving = x[..., :-count], x[..., -count:].float()
    even, odd = moving[..., 0::2], moving[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((still, turned.to(x.dtype)), dim=-1)
