"""A mixture of gated experts as DeepSeek-V4's layers have it, one expert of which every token goes through.

Scores are sqrt(softplus(.)); a bias moves the choice and never the weights. Both inner values of an expert are cut off
at a limit, the gate from above only.

Symbols: T tokens, H hidden, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from dspark.model.config import DrafterConfig
from dspark.model.streams import exact


class Expert(nn.Module):
    """W_2(silu(min(W_1 x, c)) * clamp(W_3 x, -c, c)); [T, H] -> [T, H]."""

    def __init__(self, size: int, inner: int, limit: float) -> None:
        super().__init__()
        self.w1 = nn.Linear(size, inner, bias=False)
        self.w2 = nn.Linear(inner, size, bias=False)
        self.w3 = nn.Linear(size, inner, bias=False)
        self._limit = limit

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).clamp(max=self._limit), self.w3(x).clamp(-self._limit, self._limit)
        out: Tensor = self.w2(silu(gate) * up)
        return out


class Gate(nn.Module):
    """Which experts a token goes to, and how much of each."""

    def __init__(self, size: int, experts: int, per_token: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, size))
        self.bias = nn.Parameter(torch.empty(experts))
        self._per_token, self._scale = per_token, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [T, H] -> (weights, experts), [T, chosen] each."""
        scores = softplus(exact(x, self.weight)).sqrt()
        chosen = torch.topk(scores + self.bias.float(), self._per_token, dim=-1).indices
        weights = scores.gather(-1, chosen)
        return weights / (weights.sum(-1, keepdim=True) + 1e-20) * self._scale, chosen


class Mixture(nn.Module):
    """[..., H] -> [..., H]."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        shape = config.stage
        assert shape is not None
        size = config.hidden_size
        self.gate = Gate(size, shape.experts, shape.experts_per_token, shape.expert_scale)
        self.experts = nn.ModuleList(Expert(size, shape.expert_size, shape.gate_limit) for _ in range(shape.experts))
        self.shared_experts = Expert(size, shape.expert_size, shape.gate_limit)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat)
        out: Tensor = self.shared_experts(flat)
        order = chosen.flatten().argsort(stable=True)  # by expert, then by token
        counts = chosen.new_zeros(len(self.experts)).scatter_add(0, chosen.flatten(), torch.ones_like(order))
        sizes = counts.tolist()  # all that the host waits for
        shares = weights.flatten()[order, None].to(out.dtype).split(sizes)
        for expert, rows, share in zip(self.experts, (order // chosen.shape[1]).split(sizes), shares, strict=True):
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * share)
        return out.view(x.shape)
