"""Losses of drafters that draft token by token: Eagle3 (training-time test), MTP and a language
model.

The drafter is unrolled over the whole text (`ChainDrafter.forward_steps`). At step s index i
predicts token i+2+s. Eagle3 counts it where position i+s is supervised and a token follows, as
published; MTP counts it where the predicted token itself is supervised:

    Eagle3   L = sum_b 1 / T_b sum_s 0.8^s sum_i m_{i+s} sum_v -p_t(v) log p_d(v) / B
    MTP      L = sum_s 0.8^s sum_i m_{i+2+s} ce / sum m
    lm       L = sum_i m_{i+1} ce / sum m

p_t is the target's distribution after token i+1+s, ce the cross-entropy of the true token. Eagle3
divides every row by its own length T_b, so that its weight does not depend on its batch. MTP is
trained on one step (DeepSeek-V3), Eagle3 on all of a block. Logits are computed only where they
count, a slice at a time.

Symbols: B rows, T tokens, s steps, H hidden, V vocabulary, m taps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.model.chain import ChainDrafter
from dspark.model.language import LanguageDrafter
from dspark.training.batches import SampleBatch, padded
from dspark.training.lean_loss import LeanLoss, Slots, slot_terms
from dspark.training.loss import DFLASH_WEIGHTS, sum_terms


def chain_loss(drafter: ChainDrafter, batch: SampleBatch, target_head: Tensor) -> LeanLoss:
    """The loss of Eagle3 and MTP: sums over every index and step that counts; divide `objective` by
    the (global) denominator. target_head [V, H].

    Conversations are padded behind their ends to one length.
    """
    config = drafter.config
    input_ids, last_hidden = padded(batch.ids, batch), padded(batch.last_hidden, batch)
    supervised, lengths = padded(batch.supervised, batch), batch.lengths
    count, length = input_ids.shape
    eagle = config.kind == "eagle3"
    steps = torch.arange(config.block_size if eagle else 1, device=input_ids.device)
    made = drafter.forward_steps(
        features=padded(batch.features, batch), input_ids=input_ids, steps=len(steps)
    )
    at = torch.arange(length, device=input_ids.device).unsqueeze(-1) + steps  # [T, s]
    # The token there is supervised, and so many of the row follow it.
    judged, after = (at, 1) if eagle else (at + 2, 0)
    mask = supervised[:, judged.clamp(max=length - 1)] & (judged + after < lengths[:, None, None])
    share = torch.ones(count, device=input_ids.device) / (lengths if eagle else 1)
    scale = config.step_loss_decay**steps * share[:, None, None] * mask
    first_rows = length * torch.arange(count, device=input_ids.device)[:, None, None]
    slots = Slots(
        hidden=torch.stack(made, dim=2),
        target_ids=input_ids[:, (at + 2).clamp(max=length - 1)],
        eval_mask=mask,
        rows=first_rows + (at + 1).clamp(max=length - 1),
        scale=scale,
    )
    objective, ce, l1 = slot_terms(
        drafter,
        slots,
        last_hidden=last_hidden.flatten(0, 1),
        target_head=target_head,
        weights=DFLASH_WEIGHTS,
        soft_labels=eagle,
    )
    sums = sum_terms(ce=ce, l1=l1, confidence_logits=None, weights=scale, eval_mask=mask)
    return LeanLoss(
        objective, sums._replace(denominator=sums.denominator.new_tensor(count)) if eagle else sums
    )


def language_loss(drafter: LanguageDrafter, batch: SampleBatch, target_head: Tensor) -> LeanLoss:
    """The loss of a language model: sums over every token that counts; divide `objective` by the
    (global) denominator. target_head [V, H']."""
    input_ids, last_hidden = padded(batch.ids, batch), padded(batch.last_hidden, batch)
    mask = torch.zeros(input_ids.shape, dtype=torch.bool, device=input_ids.device)
    mask[:, :-1] = padded(batch.supervised, batch)[:, 1:]
    slots = Slots(
        hidden=drafter.forward_tokens(input_ids),
        target_ids=input_ids.roll(-1, dims=1),
        eval_mask=mask,
        rows=torch.arange(mask.numel(), device=mask.device).view_as(mask),
        scale=mask.float(),
    )
    objective, *terms = slot_terms(
        drafter,
        slots,
        last_hidden=last_hidden.flatten(0, 1),
        target_head=target_head,
        weights=DFLASH_WEIGHTS,
    )
    # every token begins a block, and weighs in this one alone
    ce, l1, judged = (_windows(values, drafter.config.block_size) for values in (*terms, mask))
    blocks = judged.long().cumprod(dim=-1).bool()
    weights = blocks.float()
    weights[..., 1:] = 0
    return LeanLoss(
        objective,
        sum_terms(ce=ce, l1=l1, confidence_logits=None, weights=weights, eval_mask=blocks),
    )


def _windows(values: Tensor, size: int) -> Tensor:
    """[B, T] -> [B, T, k]: each index with the k - 1 after it; 0 past the end."""
    return torch.nn.functional.pad(values, (0, size - 1)).unfold(1, size, 1)
