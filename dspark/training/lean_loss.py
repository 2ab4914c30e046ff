"""The loss that `training/loss.py` defines, computed without a tensor [slots, V] of all slots.

Rows that do not count are dropped before any product with the vocabulary. The rest are computed in
slices small enough for the processor's cache: logits, both softmaxes, the loss and its gradient are
finished before the next slice starts, so the backward pass only scales stored gradients. Slots of
several blocks at one position of the text share one softmax of the target. A frozen vocabulary head
is neither copied nor differentiated; a trained one gets its gradient slice by slice. A head of
fewer tokens than the target's is compared with the whole distribution: the target's probability of
missing tokens adds to the L1 distance, and a missing token is no label.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dspark.model.drafter import BlockDrafter
from dspark.model.family import Drafter
from dspark.model.heads import VanillaHead
from dspark.training.anchors import Labels, slots_after
from dspark.training.loss import LossSums, LossWeights, slot_weights, sum_terms

SLICE_ROWS = 384  # [384, V] in fp32 stays in the third-level cache for small vocabularies
SLICE_NUMBERS = 1 << 22  # most numbers of a slice, for large vocabularies: 16 MiB
DEVICE_SLICE_NUMBERS = 1 << 26  # the same on a GPU, where small products are slow: 256 MiB


class LeanLoss(NamedTuple):
    """The loss of a batch: `objective` has the gradient, `sums` the denominator and the log."""

    objective: Tensor  # [] sum of w m (alpha_ce ce + alpha_l1 l1 + alpha_conf bce), not yet divided
    sums: LossSums


class LossSlots(NamedTuple):
    """Slots that a loss is of, and the target's rows that predict their tokens."""

    hidden: Tensor  # [..., H] of the drafter, after its final norm
    target_ids: Tensor  # [...]
    eval_mask: Tensor  # [...] bool, which count
    rows: Tensor  # [...] indices of the target's rows
    scale: Tensor  # [...] weight of each


def lean_block_loss(
    drafter: BlockDrafter,
    *,
    hidden: Tensor,  # [A, k, H] from forward_hidden
    input_ids: Tensor,  # [T]
    anchors: Tensor,  # [A]
    labels: Labels,  # of these anchors
    last_hidden: Tensor,  # [T, H] of the target, final-normed
    target_head: Tensor,  # [V, H] the target's output head
    weights: LossWeights,
) -> LeanLoss:
    """The loss of blocks: sums over every slot that counts; divide `objective` by the (global)
    denominator."""
    target_ids, eval_mask = labels
    size = target_ids.shape[-1]
    slot = slot_weights(size, weights.decay, device=hidden.device).expand(target_ids.shape)
    head = drafter.markov_head
    # Looked up once for both heads: every look-up has a gradient as large as the table.
    places = slots_after(anchors, size, len(input_ids))
    embedded = head.embed(input_ids[places])
    mixed, ce, l1 = slot_terms(
        drafter,
        LossSlots(drafter.headed(hidden), target_ids, eval_mask, rows=places, scale=slot),
        last_hidden=last_hidden,
        target_head=target_head,
        weights=weights,
        codes=head.codes(embedded, hidden),
        markov_w2=head.markov_w2.weight if isinstance(head, VanillaHead) else None,
    )
    confidence = drafter.confidence_of(hidden, embedded)
    sums = sum_terms(
        ce=ce, l1=l1, confidence_logits=confidence, weights=slot * eval_mask, eval_mask=eval_mask
    )
    return LeanLoss(
        mixed + weights.confidence * sums.confidence,
        sums._replace(confidence=sums.confidence.detach()),
    )


def slot_terms(
    drafter: Drafter,
    slots: LossSlots,
    *,
    last_hidden: Tensor,  # [T, H'] of the target, final-normed
    target_head: Tensor,  # [V, H']
    weights: LossWeights,
    codes: Tensor | None = None,  # [..., r] of the sequential head
    markov_w2: Tensor | None = None,  # [Vd, r]
    # cross-entropy against the target's whole distribution in place of the token
    soft_labels: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of slots: (sum of scale (alpha_ce ce + alpha_l1 l1) with its gradient; ce [...] and l1
    [...] without, 0 where a slot does not count)."""
    mask = slots.eval_mask
    # Rows [U] of the target, and for each of the R slots the index of its row; slots are computed
    # in that order.
    wanted, row_of = torch.unique(slots.rows[mask], return_inverse=True)
    order = row_of.argsort(stable=True)
    mixed, *terms = _SlicedLoss.apply(  # type: ignore[no-untyped-call]
        slots.hidden[mask][order],
        None if codes is None else codes[mask][order],
        markov_w2,
        drafter.lm_head.weight,
        last_hidden[wanted],
        row_of[order],
        target_head,
        None if soft_labels else slots.target_ids[mask][order],
        slots.scale[mask][order],
        weights,
        drafter.config.logit_softcap,
        drafter.kept_tokens,
        torch.is_grad_enabled(),
    )
    back, blank = order.argsort(), torch.zeros(mask.shape, device=mask.device)
    ce, l1 = (blank.masked_scatter(mask, term[back]) for term in terms)
    return mixed, ce, l1


class _SlicedLoss(torch.autograd.Function):
    """(h, codes, W2, W_lm) -> weighted ce + l1, and per-row ce and l1 without gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # [R, H]
        codes: Tensor | None,  # [R, r]
        w2: Tensor | None,  # [Vd, r]
        lm_head: Tensor,  # [Vd, H]; differentiated where it requires a gradient
        wanted: Tensor,  # [U, H']
        wanted_row: Tensor,  # [R] ascending, index of a slot's `wanted`
        target_head: Tensor,  # [V, H']
        target_ids: Tensor | None,  # [R]
        scale: Tensor,  # [R]
        weights: LossWeights,
        softcap: float | None,  # c: base logits of both are c tanh(z / c)
        kept: Tensor | None,  # [Vd] target ids of the head's rows; None: Vd = V
        learns: bool,  # else no gradient is computed
    ) -> tuple[Tensor, Tensor, Tensor]:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else lm_head.dtype
        given = (hidden, codes, w2, lm_head)
        with torch.autocast(kind, enabled=False):
            rows, head = hidden.to(dtype), lm_head.to(dtype)
            wanted, target_head = wanted.to(dtype), target_head.to(dtype)
            bias = None if codes is None or w2 is None else (codes.to(dtype), w2.to(dtype))
            ce, l1 = torch.empty_like(scale), torch.empty_like(scale)
            grad_rows = torch.empty_like(rows)
            grad_codes = None if bias is None else torch.empty_like(bias[0])
            grad_w2 = grad_head = None
            if learns and w2 is not None:
                grad_w2 = torch.zeros_like(w2, dtype=torch.float32)
            if learns and ctx.needs_input_grad[3]:
                grad_head = torch.zeros_like(lm_head, dtype=torch.float32)
            # Numbers that a row takes: its own logits or its share of the target's.
            width = max(len(lm_head), len(target_head) * len(wanted) // max(1, len(scale)))
            step = (
                min(SLICE_ROWS, SLICE_NUMBERS // width)
                if kind == "cpu"
                else DEVICE_SLICE_NUMBERS // width
            )
            step = max(1, step)
            places, said = _places(target_ids, kept, len(target_head))
            on_host = wanted_row.cpu()
            for start in range(0, len(scale), step):
                part = slice(start, start + step)
                judge, spanned = wanted_row[part], on_host[part]
                first, last = int(spanned[0]), int(spanned[-1])
                probs = torch.softmax(
                    _capped((wanted[first : last + 1] @ target_head.t()).float(), softcap), dim=-1
                )
                probs = probs if kept is None else probs.index_select(-1, kept)
                probs = probs.index_select(0, judge - first)
                unsaid = 0.0 if kept is None else 1.0 - probs.sum(dim=-1)
                base = _capped((rows[part] @ head.t()).float(), softcap)
                logits = base
                if bias is not None:
                    added = (bias[0][part] @ bias[1].t()).float()
                    # The gradient of the cap needs the base logits again.
                    logits = base.add_(added) if softcap is None else base + added
                hard, soft = weights.ce * scale[part], weights.l1 * scale[part]
                if said is not None:
                    hard = hard * said[part]
                labels = None if places is None else places[part]
                ce[part], l1[part], grad = _terms(
                    logits=logits, probs=probs, labels=labels, hard=hard, soft=soft
                )
                l1[part] += unsaid
                if not learns:
                    continue
                if bias is not None and grad_codes is not None and grad_w2 is not None:
                    whole = grad.to(dtype)
                    grad_codes[part] = whole @ bias[1]
                    _add_product(grad_w2, whole, bias[0][part])
                if softcap is not None:  # d tanh = 1 - tanh^2
                    grad.addcmul_(grad * base, base, value=-(softcap**-2))
                grad = grad.to(dtype)
                grad_rows[part] = grad @ head
                if grad_head is not None:
                    _add_product(grad_head, grad, rows[part])
        if said is not None:
            ce *= said
        # No other references exist, so `backward` may scale these in place and return them.
        ctx.grads = [grad_rows, grad_codes, grad_w2, grad_head]
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in given]
        ctx.mark_non_differentiable(ce, l1)
        return (scale * (weights.ce * ce + weights.l1 * l1)).sum(), ce, l1

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        scale, kept = outputs[0], ctx.grads
        if kept is None:
            raise RuntimeError("this loss can be differentiated once")
        ctx.grads = None
        grads: list[Tensor | None] = []
        for dtype in ctx.dtypes:
            grad = kept.pop(0)
            grads.append(None if grad is None or dtype is None else grad.mul_(scale).to(dtype))
        return (*grads, *([None] * 9))


def _places(
    target_ids: Tensor | None, kept: Tensor | None, size: int
) -> tuple[Tensor | None, Tensor | None]:
    """ids [R] -> (their rows in the head [R], 0 where there is none; whether there is one [R], None
    if there always is)."""
    if target_ids is None or kept is None:
        return target_ids, None
    places = target_ids.new_full((size,), -1)
    places[kept] = torch.arange(len(kept), device=kept.device)
    found = places[target_ids]
    return found.clamp(min=0), found >= 0


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total [V, c] fp32 += left [R, V]^T right [R, c]; in fp32 without a second [V, c]."""
    if left.dtype == total.dtype:
        total.addmm_(left.t(), right)
    else:
        total += left.t() @ right


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    """c tanh(logits / c), in place; None: unchanged."""
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _terms(
    *, logits: Tensor, probs: Tensor, labels: Tensor | None, hard: Tensor, soft: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """logits, probs [R, Vd], labels [R] (None: probs), weights of both terms [R] -> (ce [R], l1
    [R], d(weighted terms)/d logits [R, Vd]); `probs` is overwritten.

    d ce = p_d - onehot(x), or p_d sum p_t - p_t; d l1 = p_d (s - sum s p_d) with s = sign(p_d -
    p_t).
    """
    drafted = torch.softmax(logits, dim=-1)
    # The largest probability is exp(0) over the sum: the log-sum-exp without another pass.
    normaliser = logits.amax(dim=-1) - drafted.amax(dim=-1).log()
    if labels is None:
        said = probs.sum(dim=-1)
        ce = said * normaliser - torch.linalg.vecdot(probs, logits)
        wanted = probs * hard.unsqueeze(-1)
    else:
        said, index = torch.ones_like(normaliser), labels.unsqueeze(-1)
        ce = normaliser - logits.gather(-1, index).squeeze(-1)
    gap = probs.neg_().add_(drafted)
    l1 = torch.linalg.vector_norm(gap, ord=1, dim=-1)
    sign = gap.sign_()
    lean = torch.linalg.vecdot(sign, drafted)  # [R]
    shift = hard * said - soft * lean
    grad = sign.mul_(soft.unsqueeze(-1)).add_(shift.unsqueeze(-1)).mul_(drafted)
    if labels is None:
        grad -= wanted
    else:
        grad.scatter_add_(-1, index, -hard.unsqueeze(-1))
    return ce, l1, grad
