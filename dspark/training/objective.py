"""The loss of one batch, by family. All give the same kind of sums, so one trainer serves them all.

DSpark, DFlash   blocks at drawn anchors, packed: real anchors only, each in its text (`lean_loss`)
Eagle3, MTP      the chain unrolled over the whole text; MTP-1: its first step (`eagle3_loss`)
language model   every supervised token (`eagle3_loss`)
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
from dspark.training.batches import SampleBatch
from dspark.training.eagle3_loss import chain_loss, language_loss
from dspark.training.lean_loss import LeanLoss, lean_block_loss
from dspark.training.loss import DFLASH_WEIGHTS, LossSums, LossWeights
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
    if isinstance(drafter, ChainDrafter):
        return chain_loss(drafter, batch, target_head)
    assert isinstance(drafter, LanguageDrafter)
    return language_loss(drafter, batch, target_head)


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
    size = drafter.config.block_size
    parts = []
    for span, number in zip(batch.spans, batch.numbers, strict=True):
        ids, supervised = batch.ids[span], batch.supervised[span]
        drawn = draw_anchors(supervised, settings.anchors, generator=_generator([*key, number]))
        labels = label_blocks(input_ids=ids, supervised=supervised, anchors=drawn, block_size=size)
        parts.append((drawn + span.start, torch.full_like(drawn, span.start), *labels))
    where, starts, target_ids, eval_mask = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    if not len(where):  # a batch without anchors still has a gradient, of zeros
        where = starts = where.new_zeros(1)
        target_ids, eval_mask = where.new_zeros(1, size), eval_mask.new_zeros(1, size)
    hidden = drafter.forward_hidden(
        features=batch.features, input_ids=batch.ids, anchors=where, first_rows=starts
    )
    own, decay = own_weights(drafter.config), settings.decay
    return lean_block_loss(
        drafter,
        hidden=hidden,
        input_ids=batch.ids,
        anchors=where,
        labels=Labels(target_ids, eval_mask),
        last_hidden=batch.last_hidden,
        target_head=target_head,
        weights=own._replace(decay=decay or PUBLISHED_DECAY * max(1.0, size / PUBLISHED_BLOCK)),
    )


def add_sums(parts: Sequence[LossSums]) -> LossSums:
    """Adds the sums of pieces from left to right, so that the result is reproducible."""
    return LossSums(*(sum(values[1:], start=values[0]) for values in zip(*parts, strict=True)))


def _generator(key: Sequence[int]) -> torch.Generator:
    (state,) = np.random.SeedSequence(list(key)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))
