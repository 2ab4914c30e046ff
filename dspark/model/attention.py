"""Grouped-query attention of a draft layer, over kept entries and over the rows of the pass itself,
and its masks.

In a mask True means visible; its last axis is [context rows ; block rows].

Rows may be wider than the hidden states (Eagle3 reads two at once). Gemma4 differs from Qwen3 in
three places: values may come from the key projection, they are normed without a weight, and scores
are not scaled.

Symbols: n sequences, Q queries, S kept entries, Hq and Hkv query and key-value heads, hd head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from dspark.model.config import DrafterConfig
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm, rms_norm, rotate

# Groups of blocks, in order of their anchors: early groups skip the context rows that none of
# their blocks may see. More groups save little more and cost launches.
_GROUPS = 4


class _Served(NamedTuple):
    """The projections of the serving path: those that read the same rows are one product."""

    qkv: Product  # of rows with queries
    kv: Product  # of rows that need keys and values alone
    out: Product
    norm: Tensor  # [Hq + Hkv, hd], the weights of both norms head by head


class Projected(NamedTuple):
    """The queries, keys and values of rows [..., in]; queries and keys are normed and rotated."""

    query: Tensor  # [..., Hq, hd]
    key: Tensor  # [..., Hkv, hd]
    value: Tensor  # [..., Hkv, hd]


class Attention(nn.Module):
    """Attention with a norm per head on queries and keys; the mask is an argument."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.scale = 1.0 if config.gemma else self.head_dim**-0.5
        self._value_eps = config.rms_norm_eps if config.gemma else None
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        in_size = config.attention_size
        self.q_proj = nn.Linear(in_size, width, bias=False)
        self.k_proj = nn.Linear(in_size, kv_width, bias=False)
        self.v_proj = None if config.attention_k_eq_v else nn.Linear(in_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, late_cast=config.late_cast)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, late_cast=config.late_cast)
        self._served: _Served | None = None

    def serve(self) -> None:
        """Prepares few, fast operations for serving; the weights must not change any more."""
        kv = [self.k_proj] if self.v_proj is None else [self.k_proj, self.v_proj]
        self._served = _Served(
            qkv=Product([self.q_proj, *kv]),
            kv=Product(kv),
            out=Product([self.o_proj]),
            norm=torch.stack(
                [self.q_norm.weight.detach()] * self.heads
                + [self.k_norm.weight.detach()] * self.kv_heads
            ),
        )

    def keys_values(self, rows: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """rows [..., in], angles [..., hd] -> rotated keys and values, [..., Hkv, hd] each."""
        if self._served is not None:
            both = self._served.kv(rows).view(*rows.shape[:-1], -1, self.head_dim)
            key, value = both[..., : self.kv_heads, :], both[..., -self.kv_heads :, :]
        else:
            key = self.k_proj(rows).unflatten(-1, (self.kv_heads, self.head_dim))
            value = (
                key
                if self.v_proj is None
                else self.v_proj(rows).unflatten(-1, (self.kv_heads, self.head_dim))
            )
        return rotate(self.k_norm(key), angles), self._value(value)

    def project(self, rows: Tensor, angles: Tensor) -> Projected:
        """rows [..., in], angles [..., hd] -> their queries, keys and values."""
        if self._served is None:
            query = self.q_proj(rows).unflatten(-1, (self.heads, self.head_dim))
            return Projected(rotate(self.q_norm(query), angles), *self.keys_values(rows, angles))
        both = self.heads + self.kv_heads
        qkv = self._served.qkv(rows).view(*rows.shape[:-1], -1, self.head_dim)
        norm, eps = self._served.norm, self.q_norm.eps
        qk = rotate(
            rms_norm(qkv[..., :both, :], norm, eps, late_cast=self.q_norm.late_cast), angles
        )
        value = self._value(qkv[..., -self.kv_heads :, :])
        return Projected(qk[..., : self.heads, :], qk[..., self.heads :, :], value)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """query [n, Q, Hq, hd], key and value [n, S, Hkv, hd], mask [n, 1, 1 or Q, S] -> [n, Q,
        H]."""
        n, length, _, _ = query.shape
        # The queries of a key-value group form one long row: no expanded keys, and one small
        # product instead of several.
        grouped = query.transpose(1, 2).reshape(n, self.kv_heads, -1, self.head_dim)
        if mask is not None and mask.shape[2] > 1:
            mask = mask.repeat(1, 1, self.heads // self.kv_heads, 1)
        out = scaled_dot_product_attention(
            grouped, key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask, scale=self.scale
        )
        out = out.view(n, self.heads, length, self.head_dim).transpose(1, 2)
        return self.output(out.reshape(n, length, -1))

    def attend_groups(
        self,
        rows: Tensor,  # [A*k, H] normed rows of all blocks
        *,
        context_k: Tensor,  # [T, Hkv, hd]
        context_v: Tensor,
        angles: Tensor,  # [A*k, hd]
        groups: Sequence[QueryGroup],
    ) -> Tensor:
        """Attention of many blocks of a row of tokens, a call per group and mask: [A*k, H]."""
        query, key, value = self.project(rows, angles)
        if query.device.type == "cpu":
            # The CPU kernel's backward pass is half as fast in bf16 as in fp32.
            query, key, value = query.float(), key.float(), value.float()
            context_k, context_v = context_k.float(), context_v.float()
        parts = []
        with torch.autocast(query.device.type, enabled=False):
            for queries, seen, mask in groups:
                part = scaled_dot_product_attention(
                    query[None, queries].transpose(1, 2),
                    torch.cat((context_k[seen], key[queries]))[None].transpose(1, 2),
                    torch.cat((context_v[seen], value[queries]))[None].transpose(1, 2),
                    attn_mask=mask,
                    scale=self.scale,
                    enable_gqa=True,
                )
                parts.append(part[0].transpose(0, 1).flatten(1))
        return self.output(torch.cat(parts))

    def output(self, attended: Tensor) -> Tensor:
        """The output projection: [..., Hq*hd] -> [..., H]."""
        out: Tensor = self.o_proj(attended) if self._served is None else self._served.out(attended)
        return out

    def _value(self, value: Tensor) -> Tensor:
        return value if self._value_eps is None else rms_norm(value, None, self._value_eps)


class QueryGroup(NamedTuple):
    """A run of queries that share one attention call."""

    queries: slice  # into the A*k queries
    context_rows: slice  # only these context rows are passed
    mask: Tensor  # [Q', S'+Q']


def for_padded_context(context_len: Tensor, rows: int, block_size: int) -> Tensor:
    """Mask for S context rows, of which each sequence has context_len [n]: [n, 1, 1, S+k].

    One row serves all k queries: all slots of a block see the same rows.
    """
    index = torch.arange(rows + block_size, device=context_len.device)
    visible = (index < context_len.unsqueeze(-1)) | (index >= rows)
    return visible[:, None, None, :]


def for_training(
    anchors: Tensor, *, block_size: int, first_rows: Tensor | None = None
) -> list[QueryGroup]:
    """Masks of the blocks of anchors [A], at least one: groups that cover all A*k queries in order.

    A query sees the context rows strictly before its anchor, and its own block. `first_rows` [A]
    says where its text begins, for texts packed back to back into one row: rows before it belong to
    others.
    """
    begins = torch.zeros_like(anchors) if first_rows is None else first_rows
    step = -(-len(anchors) // _GROUPS)
    groups = []
    for start in range(0, len(anchors), step):
        part, first = anchors[start : start + step], begins[start : start + step]  # [A']
        rows = slice(int(first.min()), int(part.max()))
        index = torch.arange(rows.start, rows.stop, device=part.device)
        before = (index >= first.unsqueeze(-1)) & (index < part.unsqueeze(-1))
        owner = torch.arange(len(part), device=part.device).repeat_interleave(block_size)
        mask = torch.cat(
            (before.repeat_interleave(block_size, dim=0), owner.unsqueeze(-1) == owner), dim=-1
        )
        groups.append(
            QueryGroup(slice(start * block_size, (start + len(part)) * block_size), rows, mask)
        )
    return groups
