"""Hyper-connections of DeepSeek-V4: the hidden state is kept as a few streams, which a layer mixes as it needs them.

From all streams of a token come three sets of weights: how they are summed up for a part of the layer, how that part's
output is added to each, and how they are mixed with one another. The mixing matrix is made doubly stochastic by a fixed
number of Sinkhorn steps, so that no depth lets the streams grow. All of it in fp32.

Symbols: N streams, H hidden.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dspark.model.config import DrafterConfig
from dspark.model.rotary import rms_norm


class Mixing(NamedTuple):
    """What one part of a layer gets, and how its output goes back."""

    summed: Tensor  # [..., H]
    post: Tensor  # [..., N] of the part's output to each stream
    comb: Tensor  # [..., N, N] of stream i to stream j

    def back(self, output: Tensor, streams: Tensor) -> Tensor:
        """The part's output [..., H] and the streams it was made of [..., N, H] -> the streams after it."""
        kind = streams.dtype
        mixed = torch.matmul(self.comb.to(kind).transpose(-1, -2), streams)
        return self.post.to(kind).unsqueeze(-1) * output.unsqueeze(-2) + mixed


class HyperConnection:
    """The weights around one part of a stage; they are tensors of the stage, under names of their own."""

    def __init__(self, config: DrafterConfig) -> None:
        assert config.stage is not None
        self._shape, self._norm_eps = config.stage, config.rms_norm_eps

    @staticmethod
    def parameters(config: DrafterConfig) -> dict[str, nn.Parameter]:
        """fn, base and scale, uninitialised."""
        assert config.stage is not None
        streams = config.stage.streams
        rows = (2 + streams) * streams
        shapes = {"fn": (rows, streams * config.hidden_size), "base": (rows,), "scale": (3,)}
        return {name: nn.Parameter(torch.empty(shape)) for name, shape in shapes.items()}

    def __call__(self, streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor) -> Mixing:
        """streams [..., N, H]."""
        n, eps = self._shape.streams, self._shape.stream_eps
        sizes = [n, n, n * n]
        flat = rms_norm(streams.flatten(-2).float(), None, self._norm_eps)
        parts = torch.split(exact(flat, fn), sizes, dim=-1)
        pre, post, comb = (
            part * factor + offset
            for part, factor, offset in zip(parts, scale.float(), torch.split(base.float(), sizes), strict=True)
        )
        matrix = torch.softmax(comb.unflatten(-1, (n, n)), dim=-1) + eps
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
        for _ in range(self._shape.sinkhorn_iters - 1):
            matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
            matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
        weights = torch.sigmoid(pre) + eps
        summed = (weights.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)
        return Mixing(summed, 2 * torch.sigmoid(post), matrix)


def summed_up(
    streams: Tensor, fn: Tensor, base: Tensor, scale: Tensor, *, norm_eps: float, stream_eps: float
) -> Tensor:
    """The one hidden state that streams [..., N, H] become at the end: [..., H]."""
    flat = rms_norm(streams.flatten(-2).float(), None, norm_eps)
    weights = torch.sigmoid(exact(flat, fn) * scale.float() + base.float()) + stream_eps
    return (weights.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)


def exact(rows: Tensor, matrix: Tensor) -> Tensor:
    """rows [..., in], matrix [out, in] -> [..., out] in fp32, in mixed precision as well."""
    with torch.autocast(rows.device.type, enabled=False):
        return linear(rows.float(), matrix.float())
