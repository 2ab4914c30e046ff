"""The loss of a language model that drafts: what comes next, at every supervised token.

    L = sum_i m_{i+1} (a_ce (-log p_d(x_{i+1})) + a_l1 |p_d - p_t|_1) / sum m

By default a_l1 = 0: the ordinary one. With it the model is drawn towards the target's law.

Logged acceptance is a block's: slot k of a block after token i is judged at index i+k-1, whatever the block.
Symbols: B rows, T tokens, k slots, H and H' hidden sizes of drafter and target, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.model.language import LanguageDrafter
from dspark.training.eagle3_loss import HARD, chain_sums
from dspark.training.lean_loss import LeanLoss, lean_terms
from dspark.training.loss import LossWeights


def language_loss(
    drafter: LanguageDrafter,
    *,
    input_ids: Tensor,  # [B, T] int64
    loss_mask: Tensor,  # [B, T]
    last_hidden: Tensor,  # [B, T, H'] of the target, final-normed
    target_head: Tensor,  # [V, H'] the target's output head
    weights: LossWeights = HARD,
) -> LeanLoss:
    """Sums over every token that counts; divide `objective` by the (global) denominator."""
    judged = torch.zeros(input_ids.shape, dtype=torch.bool, device=input_ids.device)
    judged[:, :-1] = loss_mask[:, 1:] > 0
    following = input_ids.roll(-1, dims=1)
    total, ce, l1 = lean_terms(
        hidden=drafter.forward_tokens(input_ids)[judged],
        lm_head=drafter.lm_head.weight,
        wanted=last_hidden[judged],
        target_head=target_head,
        target_ids=following[judged],
        scale=torch.ones(int(judged.sum()), device=input_ids.device),
        weights=weights,
    )
    acceptance = torch.zeros(input_ids.shape, device=input_ids.device)
    acceptance[judged] = (1 - 0.5 * l1).clamp(0, 1)
    sums = chain_sums(
        ce=ce.sum(),
        l1=l1.sum(),
        denominator=judged.sum().float(),
        accepted=_windows(acceptance, drafter.config.block_size),
        masks=_windows(judged, drafter.config.block_size).long().cumprod(dim=-1).bool(),
    )
    return LeanLoss(total, sums)


def _windows(values: Tensor, size: int) -> Tensor:
    """[B, T] -> [B, T, k], each index with those after it; 0 past the end."""
    return torch.nn.functional.pad(values, (0, size - 1)).unfold(1, size, 1)
