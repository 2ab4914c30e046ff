"""RMS norm and rotary positions of Qwen3 and Gemma4.

Both are pure functions of their inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dspark.model.config import Yarn


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis; the mean square is computed in fp32."""

    def __init__(self, size: int, eps: float, *, late_cast: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.late_cast = late_cast

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps, late_cast=self.late_cast)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, *, late_cast: bool = False) -> Tensor:
    """RMS norm [..., d] -> [..., d] in x's dtype. Qwen3's order is (scale, cast, weight), Gemma4's
    (scale, weight, cast)."""
    if x.dtype == torch.float32 and not torch.is_grad_enabled():  # the same in fewer operations
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        normed: Tensor = x * size.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        return normed if weight is None else normed.mul_(weight)
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    if weight is None:
        return scaled.to(x.dtype)
    return (
        (scaled * weight.float()).to(x.dtype)
        if late_cast
        else scaled.to(x.dtype) * weight.to(x.dtype)
    )


class Rotary:
    """cos and sin of positions, in fp32.

    Not a module: it holds nothing that belongs in a checkpoint. With a `fraction` below 1 only that
    share of the pairs rotates, the fastest ones; the others stand still.
    """

    def __init__(
        self, *, head_dim: int, theta: float, fraction: float = 1.0, yarn: Yarn | None = None
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.int64, device="cpu").float() / head_dim
        self.inv_freq = 1.0 / (theta**exponents)  # [hd/2]
        self.inv_freq[int(fraction * head_dim // 2) :] = 0.0
        if yarn is not None:
            low, high = yarn.mixed(head_dim, theta)
            pair = torch.arange(head_dim // 2, device="cpu").float()
            slow = ((pair - low) / (high - low or 0.001)).clamp(0.0, 1.0)
            self.inv_freq = self.inv_freq / yarn.factor * slow + self.inv_freq * (1.0 - slow)
        self._scale = 1.0 if yarn is None else yarn.attention_factor

    def at(self, positions: Tensor) -> Tensor:
        """positions [...] int64 -> [..., hd]: cos of hd/2 pairs, then sin."""
        if self.inv_freq.device != positions.device:
            self.inv_freq = self.inv_freq.to(positions.device)
        angles = positions.unsqueeze(-1).float() * self.inv_freq
        return torch.cat((angles.cos(), angles.sin()), dim=-1) * self._scale


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates pairs (i, i + hd/2) of x [..., heads, hd] by angles [..., hd] (cos | sin)."""
    cos, sin = angles.to(x.dtype).unsqueeze(-2).chunk(2, dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
