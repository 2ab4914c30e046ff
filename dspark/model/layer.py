"""One draft layer: attention, then a gated MLP, around a residual stream; Qwen3's norms or
Gemma4's.

Which rows attention reads and sees is decided by the family; a layer only computes on them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from dspark.model.attention import Attention
from dspark.model.config import DrafterConfig
from dspark.model.products import Product
from dspark.model.rotary import RMSNorm


class GatedMLP(nn.Module):
    """W_down(act(W_gate x) * W_up x); act is silu, or gelu's tanh form in Gemma4."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self._gelu = config.gemma
        self._served: tuple[Product, Product] | None = None

    def serve(self) -> None:
        """Prepares few, fast operations for serving; the weights must not change any more."""
        self._served = (Product([self.gate_proj, self.up_proj]), Product([self.down_proj]))

    def forward(self, x: Tensor) -> Tensor:
        if self._served is not None:
            wide, down = self._served
            gate, up = wide(x).chunk(2, dim=-1)
            return down(self._act(gate).mul_(up))
        out: Tensor = self.down_proj(self._act(self.gate_proj(x)) * self.up_proj(x))
        return out

    def _act(self, x: Tensor) -> Tensor:
        return gelu(x, approximate="tanh") if self._gelu else silu(x)


class DraftLayer(nn.Module):
    """Qwen3's layer: pre-norm, residual."""

    hidden_norm: RMSNorm  # Eagle3's only, of the carried rows

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        size, eps, late_cast = config.hidden_size, config.rms_norm_eps, config.late_cast
        self.self_attn = Attention(config)
        self.mlp = GatedMLP(config)
        self.input_layernorm = RMSNorm(size, eps, late_cast=late_cast)
        self.post_attention_layernorm = RMSNorm(size, eps, late_cast=late_cast)

    def serve(self) -> None:
        """Prepares few, fast operations for serving; the weights must not change any more."""
        self.self_attn.serve()
        self.mlp.serve()

    def after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """The layer after attention: residual stream and attention's output, [..., H] each -> [...,
        H]."""
        hidden = hidden + attended
        out: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return out


class SandwichLayer(DraftLayer):
    """Gemma4's layer: a norm before and after both parts, and a stored factor on the whole."""

    layer_scalar: Tensor

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config)
        size, eps, late_cast = config.hidden_size, config.rms_norm_eps, config.late_cast
        self.pre_feedforward_layernorm = RMSNorm(size, eps, late_cast=late_cast)
        self.post_feedforward_layernorm = RMSNorm(size, eps, late_cast=late_cast)
        self.register_buffer("layer_scalar", torch.ones(1))  # stored, never trained

    def after(self, hidden: Tensor, attended: Tensor) -> Tensor:
        hidden = hidden + self.post_attention_layernorm(attended)
        hidden = hidden + self.post_feedforward_layernorm(
            self.mlp(self.pre_feedforward_layernorm(hidden))
        )
        return hidden * self.layer_scalar


def build_layer(config: DrafterConfig) -> DraftLayer:
    """A layer of the config's model type."""
    return (SandwichLayer if config.gemma else DraftLayer)(config)
