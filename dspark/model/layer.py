"""One draft layer: attention over [context ; block] without a causal mask, then a gated MLP.

The same key and value projections serve context rows (projected target features) and block
rows (the layer's normed input); only the block goes through the layer's input norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from dspark.model.block_mask import Group
from dspark.model.config import DrafterConfig
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm, rms_norm, rotate


class _ServedAttention(NamedTuple):
    """The projections that read the same rows as one product each."""

    qkv: Product  # of block rows
    kv: Product  # of context rows
    out: Product
    norm: Tensor  # [Hq + Hkv, hd], the weights of both norms head by head


class BlockAttention(nn.Module):
    """Grouped-query attention with per-head RMS norm on queries and keys."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
        self._served: _ServedAttention | None = None

    def serve(self) -> None:
        """From now on few, fast operations; the weights must not change any more."""
        self._served = _ServedAttention(
            qkv=Product([self.q_proj, self.k_proj, self.v_proj]),
            kv=Product([self.k_proj, self.v_proj]),
            out=Product([self.o_proj]),
            norm=torch.stack(
                [self.q_norm.weight.detach()] * self.heads + [self.k_norm.weight.detach()] * self.kv_heads
            ),
        )

    def keys_values(self, rows: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """rows [..., H], angles [..., hd] -> rotated keys and values, [..., Hkv, hd] each."""
        if self._served is not None:
            both = self._served.kv(rows).view(*rows.shape[:-1], 2 * self.kv_heads, self.head_dim)
            return rotate(self.k_norm(both[..., : self.kv_heads, :]), angles), both[..., self.kv_heads :, :]
        key = self.k_proj(rows).unflatten(-1, (self.kv_heads, self.head_dim))
        value = self.v_proj(rows).unflatten(-1, (self.kv_heads, self.head_dim))
        return rotate(self.k_norm(key), angles), value

    def forward(
        self,
        rows: Tensor,  # [n, Q, H] normed block rows
        *,
        context_k: Tensor,  # [n, S, Hkv, hd]
        context_v: Tensor,
        angles: Tensor,  # [n, Q, hd]
        mask: Tensor | None,  # [n, 1, 1, S+Q], True where visible
    ) -> Tensor:
        """One block per sequence: every query sees the same rows."""
        query, key, value = self._block(rows, angles)
        n, length, _, _ = query.shape
        # The queries of a key-value group stand in one long row: no expanded keys, and one
        # small product instead of several.
        grouped = query.transpose(1, 2).reshape(n, self.kv_heads, -1, self.head_dim)
        out = scaled_dot_product_attention(
            grouped,
            torch.cat((context_k, key), dim=1).transpose(1, 2),
            torch.cat((context_v, value), dim=1).transpose(1, 2),
            attn_mask=mask,
        )
        out = out.view(n, self.heads, length, self.head_dim).transpose(1, 2)
        out = out.reshape(n, length, -1)
        result: Tensor = self.o_proj(out) if self._served is None else self._served.out(out)
        return result

    def forward_groups(
        self,
        rows: Tensor,  # [B, A*k, H] normed rows of all blocks
        *,
        context_k: Tensor,  # [B, T, Hkv, hd]
        context_v: Tensor,
        angles: Tensor,  # [B, A*k, hd]
        groups: Sequence[Group],
    ) -> Tensor:
        """Many blocks per row of a batch, each behind its own mask."""
        query, key, value = self._block(rows, angles)
        if query.device.type == "cpu":
            # The CPU kernel's backward pass is half as fast in bf16 as in fp32.
            query, key, value = query.float(), key.float(), value.float()
            context_k, context_v = context_k.float(), context_v.float()
        with torch.autocast(query.device.type, enabled=False):
            attended = self._attend_groups(query, key, value, context_k, context_v, groups)
        result: Tensor = self.o_proj(attended)
        return result

    @staticmethod
    def _attend_groups(
        query: Tensor, key: Tensor, value: Tensor, context_k: Tensor, context_v: Tensor, groups: Sequence[Group]
    ) -> Tensor:
        parts = []
        for queries, seen, mask in groups:
            part = scaled_dot_product_attention(
                query[:, queries].transpose(1, 2),
                torch.cat((context_k[:, :seen], key[:, queries]), dim=1).transpose(1, 2),
                torch.cat((context_v[:, :seen], value[:, queries]), dim=1).transpose(1, 2),
                attn_mask=mask,
                enable_gqa=True,
            )
            parts.append(part.transpose(1, 2).flatten(2))
        return torch.cat(parts, dim=1)

    def _block(self, rows: Tensor, angles: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self._served is not None:
            both = self.heads + self.kv_heads
            qkv = self._served.qkv(rows).view(*rows.shape[:-1], both + self.kv_heads, self.head_dim)
            qk = rotate(rms_norm(qkv[..., :both, :], self._served.norm, self.q_norm.eps), angles)
            return qk[..., : self.heads, :], qk[..., self.heads :, :], qkv[..., both:, :]
        query = self.q_proj(rows).unflatten(-1, (self.heads, self.head_dim))
        return rotate(self.q_norm(query), angles), *self.keys_values(rows, angles)


class GatedMLP(nn.Module):
    """W_down(silu(W_gate x) * W_up x)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._served: tuple[Product, Product] | None = None

    def serve(self) -> None:
        """From now on few, fast operations; the weights must not change any more."""
        self._served = (Product([self.gate_proj, self.up_proj]), Product([self.down_proj]))

    def forward(self, x: Tensor) -> Tensor:
        if self._served is not None:
            wide, down = self._served
            gate, up = wide(x).chunk(2, dim=-1)
            return down(silu(gate).mul_(up))
        out: Tensor = self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class DraftLayer(nn.Module):
    """Pre-norm residual layer."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def keys_values(self, context: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Projected context rows [..., H] -> keys and values [..., Hkv, hd], not input-normed."""
        return self.self_attn.keys_values(context, angles)

    def forward(
        self,
        hidden: Tensor,  # [n, k, H]
        *,
        context_k: Tensor,  # [n, S, Hkv, hd]
        context_v: Tensor,
        angles: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        """Serving: one block per sequence."""
        normed = self.input_layernorm(hidden)
        return self._rest(
            hidden, self.self_attn(normed, context_k=context_k, context_v=context_v, angles=angles, mask=mask)
        )

    def forward_groups(
        self,
        hidden: Tensor,  # [B, A*k, H]
        *,
        context: Tensor,  # [B, T, H] projected
        context_angles: Tensor,  # [T, hd]
        angles: Tensor,
        groups: Sequence[Group],
    ) -> Tensor:
        """Training: all blocks of a batch."""
        key, value = self.keys_values(context, context_angles)
        attended = self.self_attn.forward_groups(
            self.input_layernorm(hidden), context_k=key, context_v=value, angles=angles, groups=groups
        )
        return self._rest(hidden, attended)

    def _rest(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + attended
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out
