"""Cross-entropy against the target's whole law, without ever holding [rows, V].

Rows go through in slices small enough for the cache; loss and gradient with respect to a slice are finished before the
next begins, so the backward pass only scales what is already there. How often speculative sampling would accept is a
by-product. The drafter's head is frozen. Both heads may be capped, c tanh(z / c), as Gemma4's are.

A head may say fewer tokens than the target's, Vd of V: the sum goes over those, and the rest of the law is distance.

Symbols: R rows, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.model.vocabulary import softcapped

SLICE_ROWS = 128  # [128, V] in fp32 stays in the second-level cache for small vocabularies


class JudgedRows(NamedTuple):
    """What became of R rows."""

    total: Tensor  # [] sum of scale sum_v -p_t(v) log p_d(v) over the rows, with gradient
    l1: Tensor  # [R] |p_d - p_t|_1 in [0, 2], without gradient


def soft_cross_entropy(
    hidden: Tensor,  # [R, H] of the drafter, final-normed
    head: Tensor,  # [Vd, H]
    *,
    wanted: Tensor,  # [R, H] of the target, final-normed
    target_head: Tensor,  # [V, H]
    scale: Tensor | None = None,  # [R] weight of each row; none: 1
    cap: float | None = None,
    kept: Tensor | None = None,  # [Vd] target ids of the head's rows; None: Vd = V
) -> JudgedRows:
    """Gradients flow to `hidden` alone."""
    scale = torch.ones(len(hidden), device=hidden.device) if scale is None else scale
    return JudgedRows(*_Sliced.apply(hidden, head, wanted, target_head, scale, cap, kept))  # type: ignore[no-untyped-call]


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        wanted: Tensor,
        target_head: Tensor,
        scale: Tensor,
        cap: float | None,
        kept: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.dtype
        with torch.autocast(kind, enabled=False):
            rows, table = hidden.to(dtype), head.to(dtype)
            wanted, target_head = wanted.to(dtype), target_head.to(dtype)
            total = torch.zeros((), device=rows.device)
            l1, gradient = torch.empty(len(rows), device=rows.device), torch.empty_like(rows)
            for start in range(0, len(rows), SLICE_ROWS):
                part = slice(start, start + SLICE_ROWS)
                law = torch.softmax(softcapped((wanted[part] @ target_head.t()).float(), cap), dim=-1)
                law = law if kept is None else law.index_select(-1, kept)
                logits = softcapped((rows[part] @ table.t()).float(), cap)
                logged = torch.log_softmax(logits, dim=-1)
                total -= torch.dot(scale[part], torch.linalg.vecdot(law, logged))
                change = logged.exp()
                if kept is None:
                    change -= law  # d loss / d logits
                    l1[part] = change.abs().sum(dim=-1)
                else:
                    said = law.sum(dim=-1)
                    l1[part] = (change - law).abs().sum(dim=-1) + 1 - said
                    change = change * said.unsqueeze(-1) - law
                change *= scale[part].unsqueeze(-1)
                if cap is not None:
                    change *= 1 - (logits / cap).square()
                gradient[part] = change.to(dtype) @ table
        ctx.save_for_backward(gradient)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(l1)
        return total, l1

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outputs[0]).to(ctx.dtype), None, None, None, None, None, None
