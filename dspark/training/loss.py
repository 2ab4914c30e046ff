"""The three terms of a drafter's training loss.

With p_d the draft distribution (sequential bias included), p_t the target distribution, both at
temperature 1, m_k the slot mask and w_k = exp(-(k-1)/decay):

    L_ce   = sum w m (-log p_d(x)) / sum w m          x the true token
    L_l1   = sum w m |p_d - p_t|_1 / sum w m          in [0, 2], no factor 1/2
    L_conf = sum w m BCE(sigmoid(z), c*) / sum w m    c* = 1 - |p_d - p_t|_1 / 2, no gradient

c* is the exact chance that speculative sampling accepts the slot, so the logged acceptance is
computed from it, too. Numerators and the denominator are returned apart, so that a trainer can add
denominators over ranks and micro-batches before dividing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

_TINY = 1e-6  # keeps figures finite where no slot counts


class LossWeights(NamedTuple):
    """Weights of the terms; the defaults are DSpark's."""

    ce: float = 0.1
    l1: float = 0.9
    confidence: float = 1.0
    decay: float = 4.0  # of the slots, above 0


DFLASH_WEIGHTS = LossWeights(ce=1.0, l1=0.0, confidence=0.0)


class LossSums(NamedTuple):
    """Numerators, their common denominator, and what is logged."""

    ce: Tensor  # []
    l1: Tensor  # []
    confidence: Tensor  # [], zero without a confidence head
    denominator: Tensor  # [] sum of w m
    accepted: Tensor  # [k] sum over valid slots of c*
    slots: Tensor  # [k] number of valid slots
    tau: Tensor  # [] sum over valid blocks of 1 + sum_k prod_{i<=k} c*_i
    blocks: Tensor  # [] number of blocks with at least one valid slot
    confidence_error: Tensor  # [] sum over valid slots of |c - c*|


def slot_weights(block_size: int, decay: float, *, device: torch.device) -> Tensor:
    """w_k, [k] fp32. The released recipe decays by 4.0 whatever the block size."""
    return torch.tensor([math.exp(-k / decay) for k in range(block_size)], device=device)


def sum_terms(
    *,
    ce: Tensor,  # [..., k]
    l1: Tensor,  # [..., k]
    confidence_logits: Tensor | None,  # [..., k]
    weights: Tensor,  # [..., k] w m
    eval_mask: Tensor,  # [..., k]
) -> LossSums:
    """Sums the terms of slots, and what is logged of them; those of a block that count are a run
    from slot 1."""
    accepted = (1 - 0.5 * l1.detach()).clamp(0, 1)  # c*
    confidence = error = torch.zeros((), device=ce.device)
    if confidence_logits is not None:
        logits = confidence_logits.float()
        each = binary_cross_entropy_with_logits(logits, accepted, reduction="none")
        confidence = (weights * each).sum()
        error = ((torch.sigmoid(logits.detach()) - accepted) * eval_mask).abs().sum()
    mask = eval_mask.flatten(0, -2)
    valid = accepted.flatten(0, -2) * mask
    begun = mask[:, 0]
    return LossSums(
        ce=(weights * ce).sum(),
        l1=(weights * l1).sum(),
        confidence=confidence,
        denominator=weights.sum(),
        accepted=valid.sum(dim=0),
        slots=mask.sum(dim=0),
        tau=(1 + valid.cumprod(dim=-1).sum(dim=-1))[begun].sum(),
        blocks=begun.sum(),
        confidence_error=error,
    )


def figures(sums: LossSums, weights: LossWeights) -> dict[str, float]:
    """The figures of a training log: the loss, the expected accepted length, the terms, and
    acceptance by slot, from 0."""
    over = float(sums.denominator) + _TINY
    ce, l1, confidence = (float(term) / over for term in (sums.ce, sums.l1, sums.confidence))
    rates = (sums.accepted / sums.slots.clamp(min=1)).tolist()
    return {
        "loss": weights.ce * ce + weights.l1 * l1 + weights.confidence * confidence,
        "tau": float(sums.tau) / max(float(sums.blocks), 1.0),
        "ce_loss": ce,
        "l1_loss": l1,
        "confidence_loss": confidence,
        **{f"accept_rate@{k}": rate for k, rate in enumerate(rates)},
    }
