"""A greedy block, written out with the drafter's own pieces."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dspark.model.drafter import BlockDrafter


class Walk(NamedTuple):
    hidden: Tensor  # [n, k, H]
    base: Tensor  # [n, k, V]
    corrected: Tensor  # [n, k, V]
    ids: Tensor  # [n, k]
    confidence: Tensor | None  # [n, k]


def greedy_block(
    drafter: BlockDrafter, *, anchor_ids: Tensor, context_k: Tensor, context_v: Tensor, context_len: Tensor
) -> Walk:
    hidden = drafter.block_hidden(
        anchor_ids=anchor_ids,
        anchor_positions=context_len,
        context_k=context_k,
        context_v=context_v,
        context_len=context_len,
    )
    base = drafter.base_logits(hidden)
    state = drafter.markov_head.initial_state(len(anchor_ids), hidden)
    previous, corrected = [anchor_ids], []
    for slot in range(drafter.config.block_size):
        bias, state = drafter.markov_head.bias(state, previous[-1], hidden[:, slot])
        logits = base[:, slot] if bias is None else base[:, slot] + bias
        corrected.append(logits)
        previous.append(logits.argmax(dim=-1))
    return Walk(
        hidden=hidden,
        base=base,
        corrected=torch.stack(corrected, dim=1),
        ids=torch.stack(previous[1:], dim=1),
        confidence=drafter.confidence_logits(hidden, torch.stack(previous[:-1], dim=1)),
    )
