"""Decoder layers in fewer operations: joined projections, short norms, one rotation for queries and
keys.

A stock layer of this shape has about seventy small operations. On a CPU, or with few rows, their
overhead is half of a step. Layers are recognised by the names of their parts. Each is replaced only
if it matches the stock layer on the inputs of a trial pass. Hooks stay in place, and calls without
a plan run the stock code.

Symbols: T tokens of the pass, H hidden size, Hq and Hkv heads, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from dspark.model.products import Product
from verify_service.kv_pool import KeyValuePool
from verify_service.paged_attention import AttentionCall, attend_rows
from verify_service.plan import PassPlan

_LAYER = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj"}


class Norm:
    """x / rms(x) * weight over the last axis, in four operations; the stock module takes seven."""

    def __init__(self, module: Any) -> None:
        self.weight: Tensor = module.weight.detach()
        self.eps = _epsilon(module)
        self._tensor_eps = torch.tensor(self.eps)
        self._short = self.weight.device.type == "cpu" and self.weight.dtype == torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        if not self._short:
            return rms_norm(x, self.weight.shape[-1:], self.weight, self.eps)
        return scale_to_one(x, self._tensor_eps).mul_(self.weight)


class LeanLayer:
    """Replacement for the `forward` of one decoder layer."""

    def __init__(self, layer: Any, call: AttentionCall, *, may_copy: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._stock = layer.forward
        self._call = call
        self._first, self._second = (
            Norm(layer.input_layernorm),
            Norm(layer.post_attention_layernorm),
        )
        self._qkv = Product(
            [attention.q_proj, attention.k_proj, attention.v_proj], may_copy=may_copy
        )
        self._out = Product([attention.o_proj], may_copy=may_copy)
        self._gate_up = Product([mlp.gate_proj, mlp.up_proj], may_copy=may_copy)
        self._down = Product([mlp.down_proj], may_copy=may_copy)
        self._activation = (
            silu if type(mlp.act_fn).__name__ in ("SiLU", "SiLUActivation") else mlp.act_fn
        )
        self._head_dim = int(attention.head_dim)
        self._heads = attention.q_proj.out_features // self._head_dim
        self._kv_heads = attention.k_proj.out_features // self._head_dim
        self._wide = mlp.gate_proj.out_features
        self._norm: tuple[Tensor, Tensor, float] | None = None  # ([Hq + Hkv, D], epsilon twice)
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm, attention.k_norm
            weights = [q.weight.detach()] * self._heads + [k.weight.detach()] * self._kv_heads
            self._norm = (torch.stack(weights), torch.tensor(_epsilon(q)), _epsilon(q))
        products = (self._qkv, self._out, self._gate_up, self._down)
        self.copied = sum(part.copied for part in products)
        self.forms = {part.form for part in products}

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        plan: PassPlan | None = kwargs.get("dspark_plan")
        rotation = kwargs.get("position_embeddings")
        if plan is None or rotation is None:
            return self._stock(hidden_states, *args, **kwargs)
        x = hidden_states[0]
        x = self._attend(x, plan, kwargs["dspark_pool"], rotation)
        wide = self._gate_up(self._second(x))
        gated = self._activation(wide[:, : self._wide]).mul_(wide[:, self._wide :])
        return self._down.plus(gated, x).unsqueeze(0)

    def _attend(
        self, x: Tensor, plan: PassPlan, pool: KeyValuePool, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Returns x [T, H] plus the output of attention."""
        heads, both = self._heads, self._heads + self._kv_heads
        qkv = self._qkv(self._first(x)).view(x.shape[0], both + self._kv_heads, self._head_dim)
        qk = qkv[:, :both]
        if self._norm is not None:
            weight, eps, as_float = self._norm
            short = qk.dtype == torch.float32 and qk.device.type == "cpu"
            scaled = scale_to_one(qk, eps) if short else rms_norm(qk, qk.shape[-1:], None, as_float)
            qk = scaled.mul_(weight)
        qk = rotate(qk, rotation, plan)
        out = attend_rows(plan, pool, self._call, qk[:, :heads], qk[:, heads:], qkv[:, both:])
        return self._out.plus(out.reshape(x.shape[0], -1), x)


def scale_to_one(x: Tensor, eps: Tensor) -> Tensor:
    """x / rms(x) over the last axis, fp32 on the CPU; a new tensor."""
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, size, size, value=1.0 / x.shape[-1]).rsqrt_()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor], plan: PassPlan) -> Tensor:
    """Rotates pairs (i, i + D/2) of x [T, heads, D] by angles whose cos and sin are [1, T, D].

    In fp32 it multiplies complex numbers, so pairs are adjacent in the result. Queries and keys are
    permuted alike, which leaves their products unchanged.
    """
    cos, sin = rotation
    half = x.shape[-1] // 2
    turn = plan.rotations.get(id(cos))
    if x.dtype != torch.float32:
        if turn is None:
            turn = plan.rotations[id(cos)] = (cos[0].unsqueeze(1), sin[0].unsqueeze(1))
        turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
        return torch.addcmul(x * turn[0], turned, turn[1])
    if turn is None:
        turn = plan.rotations[id(cos)] = (
            torch.complex(cos[0, :, None, :half], sin[0, :, None, :half]),
            cos,
        )
    return torch.view_as_real(torch.complex(x[..., :half], x[..., half:]) * turn[0]).flatten(-2)


def fits(layer: Any) -> bool:
    """Whether the parts of a decoder layer have the names and kinds that `LeanLayer` knows."""
    parts = dict(layer.named_children())
    if set(parts) != _LAYER:
        return False
    attention, mlp = dict(parts["self_attn"].named_children()), dict(parts["mlp"].named_children())
    if not (set(attention) == _ATTENTION or set(attention) == _ATTENTION | _HEAD_NORMS):
        return False
    if not (set(mlp) - {"act_fn"} == _MLP and callable(getattr(parts["mlp"], "act_fn", None))):
        return False
    plain = all(type(attention[name]) is nn.Linear for name in _ATTENTION) and all(
        type(mlp[n]) is nn.Linear for n in _MLP
    )
    norms = [
        parts["input_layernorm"],
        parts["post_attention_layernorm"],
        *(attention.get(n) for n in _HEAD_NORMS),
    ]
    return (
        plain
        and hasattr(parts["self_attn"], "head_dim")
        and all(_epsilon(norm) > 0 for norm in norms if norm is not None)
    )


def _epsilon(module: Any) -> float:
    """Epsilon of an RMS norm without bias; 0 for other modules."""
    if (
        not isinstance(getattr(module, "weight", None), Tensor)
        or getattr(module, "bias", None) is not None
    ):
        return 0.0
    return float(getattr(module, "variance_epsilon", getattr(module, "eps", 0.0)) or 0.0)
