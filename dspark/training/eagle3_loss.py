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
from dspark.training.lean_loss import LeanLoss, dense, lean_terms
from dspark.training.loss import DFLASH_WEIGHTS, acceptance, block_sums, sum_terms


def judged_at(supervised: Tensor, shift: int, after: int, lengths: Tensor) -> Tensor:
    """supervised [B, T] bool, lengths [B] of the rows without padding -> bool [B, T]: where the
    token at i + shift is supervised and `after` more tokens of the row follow it."""
    length = supervised.shape[1]
    index = torch.arange(length, device=supervised.device) + shift
    return supervised[:, index.clamp(max=length - 1)] & (index + after < lengths.unsqueeze(-1))


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
    steps = config.block_size if eagle else 1
    index = torch.arange(length, device=input_ids.device)
    objective = torch.zeros((), device=input_ids.device)
    share = torch.ones(count, device=input_ids.device) / (lengths if eagle else 1)
    terms = []
    made = drafter.forward_steps(
        features=padded(batch.features, batch), input_ids=input_ids, steps=steps
    )
    for step, states in enumerate(made):
        shift, after = (step, 1) if eagle else (step + 2, 0)
        mask = judged_at(supervised, shift, after, lengths)
        weight = config.step_loss_decay**step
        rows = states[mask]
        # The target's rows that predict the token.
        wanted = last_hidden[:, (index + 1 + step).clamp(max=length - 1)][mask]
        scale = weight * share.unsqueeze(-1) * mask
        total, ce, l1 = lean_terms(
            hidden=rows,
            lm_head=drafter.lm_head.weight,
            wanted=wanted,
            target_head=target_head,
            target_ids=input_ids[:, (index + 2 + step).clamp(max=length - 1)][mask],
            scale=scale[mask],
            weights=DFLASH_WEIGHTS,
            softcap=config.logit_softcap,
            kept=drafter.kept_tokens,
            soft_labels=eagle,
        )
        objective = objective + total
        terms.append((dense(mask, ce), dense(mask, l1), scale, mask))
    ce, l1, weights, judged = (torch.stack(column, dim=-1) for column in zip(*terms, strict=True))
    sums = sum_terms(ce=ce, l1=l1, confidence_logits=None, weights=weights, eval_mask=judged)
    return LeanLoss(
        objective, sums._replace(denominator=sums.denominator.new_tensor(count)) if eagle else sums
    )


def language_loss(drafter: LanguageDrafter, batch: SampleBatch, target_head: Tensor) -> LeanLoss:
    """The loss of a language model: sums over every token that counts; divide `objective` by the
    (global) denominator. target_head [V, H']."""
    input_ids, last_hidden = padded(batch.ids, batch), padded(batch.last_hidden, batch)
    judged = torch.zeros(input_ids.shape, dtype=torch.bool, device=input_ids.device)
    judged[:, :-1] = padded(batch.supervised, batch)[:, 1:]
    following = input_ids.roll(-1, dims=1)
    total, ce, l1 = lean_terms(
        hidden=drafter.forward_tokens(input_ids)[judged],
        lm_head=drafter.lm_head.weight,
        wanted=last_hidden[judged],
        target_head=target_head,
        target_ids=following[judged],
        scale=torch.ones(int(judged.sum()), device=input_ids.device),
        weights=DFLASH_WEIGHTS,
        softcap=drafter.config.logit_softcap,
    )
    ce, l1, size = ce.unsqueeze(-1), l1.unsqueeze(-1), drafter.config.block_size
    each = torch.ones_like(ce)
    sums = sum_terms(ce=ce, l1=l1, confidence_logits=None, weights=each, eval_mask=each.bool())
    accepted = _windows(dense(judged, acceptance(l1)), size)
    blocks = _windows(judged, size).long().cumprod(dim=-1)
    return LeanLoss(total, sums._replace(**block_sums(accepted, blocks.bool())))


def _windows(values: Tensor, size: int) -> Tensor:
    """[B, T] -> [B, T, k]: each index with the k - 1 after it; 0 past the end."""
    return torch.nn.functional.pad(values, (0, size - 1)).unfold(1, size, 1)
