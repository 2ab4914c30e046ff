"""The loss of one batch, by family. All give the same kind of sums, so one trainer serves them all.

DSpark and DFlash are trained on blocks at drawn anchors, packed: real anchors only, each in its
text (`lean_loss`). Drafters that draft token by token are unrolled over the whole text
(`ChainDrafter.forward_steps`). At step s index i predicts token i+2+s. Eagle3 counts it where
position i+s is supervised and a token follows, as published (training-time test); MTP counts it
where the predicted token itself is supervised:

    Eagle3   L = sum_b 1 / T_b sum_s 0.8^s sum_i m_{i+s} sum_v -p_t(v) log p_d(v) / B
    MTP      L = sum_s 0.8^s sum_i m_{i+2+s} ce / sum m
    lm       L = sum_i m_{i+1} ce / sum m

p_t is the target's distribution after token i+1+s, ce the cross-entropy of the true token. Eagle3
divides every row by its own length T_b, so that its weight does not depend on its batch. MTP is
trained on one step (DeepSeek-V3), Eagle3 on all of a block.

Symbols: B rows, T tokens, s steps, H hidden, V vocabulary, m taps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.model.chain import ChainDrafter
from dspark.model.config import DrafterConfig
from dspark.model.drafter import BlockDrafter
from dspark.model.family import Drafter
from dspark.model.language import LanguageDrafter
from dspark.training.anchors import Labels, draw_anchors, label_blocks
from dspark.training.batches import SampleBatch, padded
from dspark.training.lean_loss import LeanLoss, LossSlots, lean_block_loss, slot_terms
from dspark.training.loss import DFLASH_WEIGHTS, LossSums, LossWeights, sum_terms
from dspark.training.settings import Settings

PUBLISHED_DECAY, PUBLISHED_BLOCK = 4.0, 7


def batch_loss(
    drafter: Drafter,
    batch: SampleBatch,
    settings: Settings,
    target_head: Tensor,  # [V, H]
    key: Sequence[int],
) -> LeanLoss:
    """Sums over a batch, not divided. A conversation's anchors are drawn by (key, its number), so
    neither the pieces of a step nor its workers change them."""
    if isinstance(drafter, BlockDrafter):
        return _blocks(drafter, batch, settings, target_head, key)
    assert isinstance(drafter, ChainDrafter | LanguageDrafter)
    return step_loss(drafter, batch, target_head)


def own_weights(config: DrafterConfig) -> LossWeights:
    """The loss weights of a family; all but DSpark use the cross-entropy alone."""
    return LossWeights() if config.family == "dspark" else DFLASH_WEIGHTS


def _blocks(
    drafter: BlockDrafter,
    batch: SampleBatch,
    settings: Settings,
    target_head: Tensor,
    key: Sequence[int],
) -> LeanLoss:
    drawn = [
        draw_anchors(batch.supervised[span], settings.anchors, generator=_generator([*key, number]))
        for span, number in zip(batch.spans, batch.numbers, strict=True)
    ]
    share = max(1.0, drafter.config.block_size / PUBLISHED_BLOCK)
    weights = own_weights(drafter.config)._replace(decay=settings.decay or PUBLISHED_DECAY * share)
    return blocks_loss(drafter, batch, drawn, target_head, weights)[2]


def blocks_loss(
    drafter: BlockDrafter,
    batch: SampleBatch,
    drawn: Sequence[Tensor],
    target_head: Tensor,
    weights: LossWeights,
) -> tuple[Tensor, Labels, LeanLoss]:
    """Hidden states [A, k, H], labels and loss of the blocks at the anchors `drawn` of each
    conversation, which count from its start."""
    size = drafter.config.block_size
    parts = []
    for span, own in zip(batch.spans, drawn, strict=True):
        ids, supervised = batch.ids[span], batch.supervised[span]
        labels = label_blocks(input_ids=ids, supervised=supervised, anchors=own, block_size=size)
        parts.append((own + span.start, torch.full_like(own, span.start), *labels))
    where, starts, target_ids, eval_mask = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    if not len(where):  # a batch without anchors still has a gradient, of zeros
        where = starts = where.new_zeros(1)
        target_ids, eval_mask = where.new_zeros(1, size), eval_mask.new_zeros(1, size)
    labels = Labels(target_ids, eval_mask)
    hidden = drafter.forward_hidden(
        features=batch.features, input_ids=batch.ids, anchors=where, first_rows=starts
    )
    loss = lean_block_loss(
        drafter,
        hidden=hidden,
        input_ids=batch.ids,
        anchors=where,
        labels=labels,
        last_hidden=batch.last_hidden,
        target_head=target_head,
        weights=weights,
    )
    return hidden, labels, loss


def step_loss(
    drafter: ChainDrafter | LanguageDrafter, batch: SampleBatch, target_head: Tensor
) -> LeanLoss:
    """The loss of drafters that draft token by token: sums over every index and step that counts;
    divide `objective` by the (global) denominator. target_head [V, H'].

    Conversations are padded behind their ends to one length.
    """
    config = drafter.config
    input_ids, last_hidden = padded(batch.ids, batch), padded(batch.last_hidden, batch)
    supervised, lengths = padded(batch.supervised, batch), batch.lengths
    count, length = input_ids.shape
    eagle = config.kind == "eagle3"
    steps = torch.arange(config.block_size if eagle else 1, device=input_ids.device)
    if isinstance(drafter, LanguageDrafter):
        made, ahead = [drafter.forward_tokens(input_ids)], 1
    else:
        features = padded(batch.features, batch)
        made, ahead = (
            drafter.forward_steps(features=features, input_ids=input_ids, steps=len(steps)),
            2,
        )
    at = torch.arange(length, device=input_ids.device).unsqueeze(-1) + steps  # [T, s]
    # The token there is supervised, and so many of the row follow it.
    judged, after = (at, 1) if eagle else (at + ahead, 0)
    mask = supervised[:, judged.clamp(max=length - 1)] & (judged + after < lengths[:, None, None])
    share = torch.ones(count, device=input_ids.device) / (lengths if eagle else 1)
    scale = config.step_loss_decay**steps * share[:, None, None] * mask
    first_rows = length * torch.arange(count, device=input_ids.device)[:, None, None]
    slots = LossSlots(
        hidden=torch.stack(made, dim=2),
        target_ids=input_ids[:, (at + ahead).clamp(max=length - 1)],
        eval_mask=mask,
        rows=first_rows + (at + ahead - 1).clamp(max=length - 1),
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
    if isinstance(drafter, LanguageDrafter):  # every token begins a block, and weighs in this alone
        ce, l1, mask = (_windows(each[..., 0], config.block_size) for each in (ce, l1, mask))
        mask = mask.long().cumprod(dim=-1).bool()
        scale = mask * (torch.arange(config.block_size, device=mask.device) == 0)
    sums = sum_terms(ce=ce, l1=l1, confidence_logits=None, weights=scale, eval_mask=mask)
    return LeanLoss(
        objective, sums._replace(denominator=sums.denominator.new_tensor(count)) if eagle else sums
    )


def _windows(values: Tensor, size: int) -> Tensor:
    """[B, T] -> [B, T, k]: each index with the k - 1 after it; 0 past the end."""
    return torch.nn.functional.pad(values, (0, size - 1)).unfold(1, size, 1)


def add_sums(parts: Sequence[LossSums]) -> LossSums:
    """Adds the sums of pieces from left to right, so that the result is reproducible."""
    return LossSums(*(sum(values[1:], start=values[0]) for values in zip(*parts, strict=True)))


def _generator(key: Sequence[int]) -> torch.Generator:
    (state,) = np.random.SeedSequence(list(key)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))
