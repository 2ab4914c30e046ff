"""One layer of a DeepSeek-V4 drafter, a stage: attention, a mixture of experts, and
hyper-connections around both.

*Hyper-connections.* The hidden state is kept as a few streams. All streams of a token give three
sets of weights: how they are summed up for a part of the layer, how that part's output is added to
each, and how they are mixed with one another. The mixing matrix is made doubly stochastic by a
fixed number of Sinkhorn steps, so that no depth lets the streams grow. All of it in fp32.

*Attention.* One head of keys, which are the values too, is read by many heads of queries. The last
values of a head rotate, in neighbouring pairs; the output carries the rotation of the keys and is
turned back. A sink per head takes its share of the weights and adds nothing. The output projection
has low rank within groups of heads.

*Mixture.* Scores are sqrt(softplus(.)); a bias changes the choice and never the weights. Both inner
values of an expert are clamped at a limit, the gate from above only. Every token also runs through
one shared expert.

Symbols: n sequences, q slots of a block, S context rows, T tokens, N streams, H hidden, Hq heads,
hd head size, R rotating values of a head, E experts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu, softplus

from dspark.model.config import DrafterConfig, StageShape
from dspark.model.rotary import RMSNorm, rms_norm


class Stage(nn.Module):
    """One stage; tensors have the names of the checkpoint."""

    def __init__(self, config: DrafterConfig, shape: StageShape) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self._shape, self._eps = shape, eps
        self.attn = LatentAttention(config, shape)
        self.ffn = Mixture(size, shape)
        self.attn_norm = RMSNorm(size, eps, late_cast=True)
        self.ffn_norm = RMSNorm(size, eps, late_cast=True)
        rows = (2 + shape.streams) * shape.streams
        for part in ("attn", "ffn"):
            self.register_parameter(
                f"hc_{part}_fn", nn.Parameter(torch.empty(rows, shape.streams * size))
            )
            self.register_parameter(f"hc_{part}_base", nn.Parameter(torch.empty(rows)))
            self.register_parameter(f"hc_{part}_scale", nn.Parameter(torch.empty(3)))

    def forward(self, streams: Tensor, context: Tensor, visible: Tensor, angles: Tensor) -> Tensor:
        """streams [n, q, N, H], keys of the context [n, S, hd] -> [n, q, N, H]."""
        mixing = self._mixing("attn", streams)
        streams = mixing.back(
            self.attn(self.attn_norm(mixing.summed), context, visible, angles), streams
        )
        mixing = self._mixing("ffn", streams)
        return mixing.back(self.ffn(self.ffn_norm(mixing.summed)), streams)

    def _mixing(self, part: str, streams: Tensor) -> Mixing:
        """The mixing of streams [..., N, H] before a part."""
        fn, base, scale = (getattr(self, f"hc_{part}_{name}") for name in ("fn", "base", "scale"))
        n, eps = self._shape.streams, self._shape.stream_eps
        sizes = [n, n, n * n]
        flat = rms_norm(streams.flatten(-2).float(), None, self._eps)
        parts = torch.split(exact(flat, fn), sizes, dim=-1)
        pre, post, comb = (
            part * factor + offset
            for part, factor, offset in zip(
                parts, scale.float(), torch.split(base.float(), sizes), strict=True
            )
        )
        matrix = torch.softmax(comb.unflatten(-1, (n, n)), dim=-1) + eps
        matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
        for _ in range(self._shape.sinkhorn_iters - 1):
            matrix = matrix / (matrix.sum(-1, keepdim=True) + eps)
            matrix = matrix / (matrix.sum(-2, keepdim=True) + eps)
        return Mixing(summed_up(streams, torch.sigmoid(pre) + eps), 2 * torch.sigmoid(post), matrix)


class Mixing(NamedTuple):
    """The input of one part of a layer, and the weights that return its output to the streams."""

    summed: Tensor  # [..., H]
    post: Tensor  # [..., N] weight of the part's output in each stream
    comb: Tensor  # [..., N, N] weight of stream i in stream j

    def back(self, output: Tensor, streams: Tensor) -> Tensor:
        """The part's output [..., H] and the streams [..., N, H] before it -> the streams after
        it."""
        kind = streams.dtype
        mixed = torch.matmul(self.comb.to(kind).transpose(-1, -2), streams)
        return self.post.to(kind).unsqueeze(-1) * output.unsqueeze(-2) + mixed


class LatentAttention(nn.Module):
    """Attention of a stage; context rows and block rows share the projection of keys."""

    def __init__(self, config: DrafterConfig, shape: StageShape) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        heads, head_dim = config.num_attention_heads, config.head_dim
        self._heads, self._head_dim, self._groups, self._eps = heads, head_dim, shape.o_groups, eps
        self.wq_a = nn.Linear(size, shape.q_lora_rank, bias=False)
        self.q_norm = RMSNorm(shape.q_lora_rank, eps, late_cast=True)
        self.wq_b = nn.Linear(shape.q_lora_rank, heads * head_dim, bias=False)
        self.wkv = nn.Linear(size, head_dim, bias=False)
        self.kv_norm = RMSNorm(head_dim, eps, late_cast=True)
        self.wo_a = nn.Linear(
            heads * head_dim // shape.o_groups, shape.o_groups * shape.o_lora_rank, bias=False
        )
        self.wo_b = nn.Linear(shape.o_groups * shape.o_lora_rank, size, bias=False)
        self.attn_sink = nn.Parameter(torch.empty(heads))

    def keys(self, rows: Tensor, angles: Tensor) -> Tensor:
        """Rotated keys of rows [..., H] by angles [..., R] (cos | sin) -> [..., hd]."""
        return _turn(self.kv_norm(self.wkv(rows)), angles)

    def forward(self, x: Tensor, context: Tensor, visible: Tensor, angles: Tensor) -> Tensor:
        """x [n, q, H], keys of the context [n, S, hd], which of them count [n, S], angles [n, q, R]
        of the block -> [n, q, H]. Every slot sees all of the block."""
        n, slots = x.shape[:2]
        query = self.wq_b(self.q_norm(self.wq_a(x))).unflatten(-1, (self._heads, self._head_dim))
        query = _turn(rms_norm(query, None, self._eps), angles.unsqueeze(-2))  # [n, q, Hq, hd]
        keys = torch.cat((context, self.keys(x, angles)), dim=1)
        scores = torch.einsum("nqhd,nsd->nhqs", query, keys).float() * self._head_dim**-0.5
        hidden = pad(~visible, (0, slots), value=False)
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        sink = self.attn_sink.float().view(1, -1, 1, 1).expand(n, -1, slots, 1)
        weights = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1].to(keys.dtype)
        out = torch.einsum("nhqs,nsd->nqhd", weights, keys)
        cos, sin = angles.chunk(2, dim=-1)
        out = _turn(out, torch.cat((cos, -sin), dim=-1).unsqueeze(-2))
        grouped = out.reshape(n, slots, self._groups, -1)
        low = torch.einsum(
            "nqgi,gri->nqgr", grouped, self.wo_a.weight.view(self._groups, -1, grouped.shape[-1])
        )
        attended: Tensor = self.wo_b(low.flatten(-2))
        return attended


class Mixture(nn.Module):
    """A mixture of experts, [..., H] -> [..., H]."""

    def __init__(self, size: int, shape: StageShape) -> None:
        super().__init__()
        self.gate = Gate(size, shape)
        self.experts = nn.ModuleList(Expert(size, shape) for _ in range(shape.experts))
        self.shared_experts = Expert(size, shape)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.gate(flat)
        out: Tensor = self.shared_experts(flat)
        order = chosen.flatten().argsort(stable=True)  # by expert, then by token
        counts = chosen.new_zeros(len(self.experts)).scatter_add(
            0, chosen.flatten(), torch.ones_like(order)
        )
        sizes = counts.tolist()  # the only synchronisation
        shares = weights.flatten()[order, None].to(out.dtype).split(sizes)
        for expert, rows, share in zip(
            self.experts, (order // chosen.shape[1]).split(sizes), shares, strict=True
        ):
            if len(rows):
                out = out.index_add(0, rows, expert(flat[rows]) * share)
        return out.view(x.shape)


class Gate(nn.Module):
    """Chooses the experts of a token, and their weights."""

    def __init__(self, size: int, shape: StageShape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.experts, size))
        self.bias = nn.Parameter(torch.empty(shape.experts))
        self._per_token, self._scale = shape.experts_per_token, shape.expert_scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Routes x [T, H] -> (weights, experts), [T, chosen] each."""
        scores = softplus(exact(x, self.weight)).sqrt()
        chosen = torch.topk(scores + self.bias.float(), self._per_token, dim=-1).indices
        weights = scores.gather(-1, chosen)
        return weights / (weights.sum(-1, keepdim=True) + 1e-20) * self._scale, chosen


class Expert(nn.Module):
    """One expert, W_2(silu(min(W_1 x, c)) * clamp(W_3 x, -c, c)): [T, H] -> [T, H]."""

    def __init__(self, size: int, shape: StageShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(size, shape.expert_size, bias=False)
        self.w2 = nn.Linear(shape.expert_size, size, bias=False)
        self.w3 = nn.Linear(size, shape.expert_size, bias=False)
        self._limit = shape.gate_limit

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).clamp(max=self._limit), self.w3(x).clamp(-self._limit, self._limit)
        out: Tensor = self.w2(silu(gate) * up)
        return out


def summed_up(streams: Tensor, weights: Tensor) -> Tensor:
    """Sums streams [..., N, H] with weights [..., N] fp32 -> [..., H]."""
    return (weights.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)


def exact(rows: Tensor, matrix: Tensor) -> Tensor:
    """The product rows [..., in] x matrix [out, in] -> [..., out] in fp32, also under autocast."""
    with torch.autocast(rows.device.type, enabled=False):
        return linear(rows.float(), matrix.float())


def _turn(x: Tensor, angles: Tensor) -> Tensor:
    """Rotates pairs (2i, 2i + 1) of the last R values of x [..., hd] by angles [..., R] (cos |
    sin)."""
    count = angles.shape[-1]
    cos, sin = angles.chunk(2, dim=-1)
    still, moving = x[..., :-count], x[..., -count:].float()
    even, odd = moving[..., 0::2], moving[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
    return torch.cat((still, turned.to(x.dtype)), dim=-1)
