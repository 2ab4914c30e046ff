"""The same loss as `training/loss.py`, without ever holding [slots, V] for all slots.

Rows that do not count are dropped before the vocabulary is touched. The rest go through in
slices small enough for the cache: logits, both softmaxes, the loss and its gradient with
respect to the slice are finished before the next slice starts, so the backward pass only
scales what is already there. A frozen vocabulary head makes this possible: gradients are
wanted for hidden states and for the sequential head alone.

One product serves both parts of the draft logits: [h ; code] [W_lm | W_2]^T.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from dspark.model.drafter import BlockDrafter
from dspark.model.markov import VanillaHead
from training.anchors import gather_slots
from training.loss import LossSums, LossWeights, slot_weights

SLICE_ROWS = 128  # [128, V] in fp32 stays in the second-level cache for small vocabularies


class LeanLoss(NamedTuple):
    """`objective` has the gradient; the sums are what is divided by and what is logged."""

    objective: Tensor  # [] sum of w m (alpha_ce ce + alpha_l1 l1 + alpha_conf bce), not yet divided
    sums: LossSums


def lean_block_loss(
    drafter: BlockDrafter,
    *,
    hidden: Tensor,  # [B, A, k, H] from forward_hidden
    previous_ids: Tensor,  # [B, A, k]
    target_ids: Tensor,  # [B, A, k]
    eval_mask: Tensor,  # [B, A, k] bool
    anchor_positions: Tensor,  # [B, A]
    last_hidden: Tensor,  # [B, T, H] of the target, final-normed
    target_head: Tensor,  # [V, H] the target's output head
    weights: LossWeights,
) -> LeanLoss:
    """Sums over every slot that counts; divide `objective` by the (global) denominator."""
    size = target_ids.shape[-1]
    slot = slot_weights(size, weights.decay, device=hidden.device).expand(target_ids.shape)
    head = drafter.markov_head
    codes = head.codes(previous_ids, hidden)
    confidence = drafter.confidence_logits(hidden, previous_ids)
    wanted = gather_slots(last_hidden, anchor_positions, size)
    scale = slot[eval_mask]  # [R] w of the rows that count
    mixed, ce, l1 = _SlicedLoss.apply(  # type: ignore[no-untyped-call]
        hidden[eval_mask],
        None if codes is None else codes[eval_mask],
        head.markov_w2.weight if isinstance(head, VanillaHead) else None,
        drafter.lm_head.weight,
        wanted[eval_mask],
        target_head,
        target_ids[eval_mask],
        scale,
        weights,
    )
    acceptance = (1 - 0.5 * l1).clamp(0, 1)  # [R] c*
    bce = error = bias = torch.zeros((), device=hidden.device)
    if confidence is not None:
        logits = confidence[eval_mask].float()
        bce = (scale * binary_cross_entropy_with_logits(logits, acceptance, reduction="none")).sum()
        mixed = mixed + weights.confidence * bce
        gap = torch.sigmoid(logits.detach()) - acceptance
        error, bias = gap.abs().sum(), gap.sum()
    dense = torch.zeros(target_ids.shape, device=hidden.device)
    dense[eval_mask] = acceptance
    dense, valid = dense.flatten(0, -2), eval_mask.flatten(0, -2)
    sums = LossSums(
        ce=(scale * ce).sum(),
        l1=(scale * l1).sum(),
        confidence=bce.detach(),
        denominator=scale.sum(),
        accepted=dense.sum(dim=0),
        slots=valid.sum(dim=0),
        tau=(1 + dense.cumprod(dim=-1).sum(dim=-1))[valid[:, 0]].sum(),
        blocks=valid[:, 0].sum(),
        confidence_error=error,
        confidence_bias=bias,
    )
    return LeanLoss(mixed, sums)


class _SlicedLoss(torch.autograd.Function):
    """(h, codes, W2) -> weighted ce + l1, and per-row ce and l1 without gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [R, H]
        codes: Tensor | None,  # [R, r]
        w2: Tensor | None,  # [V, r]
        lm_head: Tensor,  # [V, H]
        wanted: Tensor,  # [R, H]
        target_head: Tensor,  # [V, H]
        target_ids: Tensor,  # [R]
        scale: Tensor,  # [R]
        weights: LossWeights,
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else lm_head.dtype
        with torch.autocast(kind, enabled=False):
            joined = hidden if codes is None else torch.cat((hidden, codes.to(hidden.dtype)), dim=-1)
            table = lm_head if w2 is None else torch.cat((lm_head, w2), dim=-1)
            joined, table = joined.to(dtype), table.to(dtype)  # [R, H+r], [V, H+r]
            wanted, target_head = wanted.to(dtype), target_head.to(dtype)
            ce, l1 = torch.empty_like(scale), torch.empty_like(scale)
            grad_joined = torch.empty_like(joined)
            grad_w2 = None if w2 is None else torch.zeros_like(w2, dtype=torch.float32)
            width = hidden.shape[-1]
            for start in range(0, len(scale), SLICE_ROWS):
                part = slice(start, start + SLICE_ROWS)
                law = torch.softmax((wanted[part] @ target_head.t()).float(), dim=-1)
                logits = (joined[part] @ table.t()).float()
                ce[part], l1[part], grad = _terms(
                    logits=logits, law=law, target_ids=target_ids[part], scale=scale[part], weights=weights
                )
                grad = grad.to(dtype)
                grad_joined[part] = grad @ table
                if grad_w2 is not None:
                    grad_w2 += grad.t() @ joined[part, width:]
        ctx.save_for_backward(grad_joined, grad_w2)
        ctx.shapes = (width, hidden.dtype, None if codes is None else codes.dtype, None if w2 is None else w2.dtype)
        ctx.mark_non_differentiable(ce, l1)
        return (scale * (weights.ce * ce + weights.l1 * l1)).sum(), ce, l1

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale = outputs[0]
        grad_joined, grad_w2 = ctx.saved_tensors
        width, hidden_dtype, codes_dtype, w2_dtype = ctx.shapes
        grad_hidden = (grad_joined[:, :width] * scale).to(hidden_dtype)
        grad_codes = None if codes_dtype is None else (grad_joined[:, width:] * scale).to(codes_dtype)
        grad_table = None if w2_dtype is None else (grad_w2 * scale).to(w2_dtype)
        return grad_hidden, grad_codes, grad_table, None, None, None, None, None, None


def _terms(
    *, logits: Tensor, law: Tensor, target_ids: Tensor, scale: Tensor, weights: LossWeights
) -> tuple[Tensor, Tensor, Tensor]:
    """logits, law [R, V] -> (ce [R], l1 [R], d(weighted terms)/d logits [R, V]).

    d ce = p_d - onehot(x); d l1 = p_d (s - sum s p_d) with s = sign(p_d - p_t).
    """
    index = target_ids.unsqueeze(-1)
    at_label, top = logits.gather(-1, index).squeeze(-1), logits.amax(dim=-1)
    drafted = torch.softmax(logits, dim=-1)
    # The largest probability is exp(0) over the sum: the log-sum-exp without another pass.
    ce = top - drafted.amax(dim=-1).log() - at_label
    gap = drafted - law
    sign = torch.sign(gap)
    l1 = (gap * sign).sum(dim=-1)
    lean = torch.linalg.vecdot(sign, drafted)  # [R]
    factor = (weights.l1 * scale).unsqueeze(-1)
    shift = (scale * (weights.ce - weights.l1 * lean)).unsqueeze(-1)
    grad = torch.addcmul(shift, sign, factor).mul_(drafted)
    grad.scatter_add_(-1, index, -(weights.ce * scale).unsqueeze(-1))
    return ce, l1, grad
