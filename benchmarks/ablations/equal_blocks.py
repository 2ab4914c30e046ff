"""What a drafted block is worth under a rule: the tokens it commits on average over the rule's own
draws.

Two settings are then compared on equal contexts, block by block, without noise from these draws or
from the course of an answer. Only the block itself is a draw; under `coupled` the target's noise is
one too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dspark.decoding.block_rule import chances
from dspark.decoding.gumbel import checked_argmax, exponentials
from dspark.decoding.sampling import SamplingColumns, distribution
from dspark.decoding.slots import Slots
from dspark.decoding.token_rule import accept_probability
from dspark.types import Block, Rule, SamplingParams


def committed(block: Block, probs: Tensor, params: SamplingParams, anchor_position: int) -> float:
    """Mean tokens of a round that verifies the whole block, the target's own included.

    probs [l + 1, V] float64: the target's distribution at the anchor and behind each of the l
    drafted tokens.
    """
    ids = list(block.token_ids)
    if not ids:
        return 1.0
    if params.greedy or params.rule is Rule.COUPLED:
        said = probs.argmax(-1) if params.greedy else _coupled_draws(probs, params, anchor_position)
        return 1.0 + _agreeing(ids, said.tolist())
    q_ids, q_probs = block.q.arrays()
    slots = Slots.of([ids], [q_ids.ravel()], [q_probs.ravel()], [block.q.entries])
    if params.rule is Rule.TOKEN:
        p = probs[torch.arange(len(ids)), torch.tensor(ids)].numpy()
        kept = accept_probability(p, slots.q)[: slots.counting[0]]
        return 1.0 + float(np.cumprod(kept).sum())
    made = chances(probs[torch.from_numpy(slots.slot), torch.from_numpy(slots.ids)].numpy(), slots)
    # The longest candidate is kept: at least k tokens unless every candidate from k on fails.
    fails = np.cumprod((1.0 - made.candidate[: slots.counting[0]])[::-1])
    return 1.0 + float((1.0 - fails).sum())


def probs_behind(
    model: torch.nn.Module,
    tokens: Sequence[int],
    blocks: Sequence[Sequence[int]],
    params: SamplingParams,
) -> list[Tensor]:
    """The target's distribution along each block after `tokens`, [l + 1, V] each, by one pass over
    all of them.

    Blocks stand side by side behind the tokens; a mask keeps them from seeing each other.
    """
    context, total = len(tokens), sum(map(len, blocks))
    length = context + total
    sees = torch.ones(length, length, dtype=torch.bool).tril()
    positions = list(range(context))
    start = context
    for block in blocks:
        sees[start : start + len(block), context:start] = False
        positions += range(context, context + len(block))
        start += len(block)
    mask = torch.zeros(1, 1, length, length).masked_fill(~sees, torch.finfo(torch.float32).min)
    ids = [*tokens, *(token for block in blocks for token in block)]
    with torch.inference_mode():
        logits = model(
            torch.tensor([ids]),
            attention_mask=mask,
            position_ids=torch.tensor([positions]),
            logits_to_keep=1 + total,
            use_cache=False,
        ).logits[0]
        probs = distribution(logits.float(), SamplingColumns.of([params] * (1 + total)))
    made, start = [], 1
    for block in blocks:
        made.append(torch.cat((probs[:1], probs[start : start + len(block)])))
        start += len(block)
    return made


def _coupled_draws(probs: Tensor, params: SamplingParams, anchor_position: int) -> Tensor:
    """Tokens that coupled noise draws from the target's distribution at each slot: [l + 1]."""
    count = len(probs)
    positions = range(anchor_position + 1, anchor_position + 1 + count)
    return checked_argmax(probs, exponentials([params] * count, list(positions), probs.shape[-1]))[
        0
    ]


def _agreeing(drafted: Sequence[int], said: Sequence[int]) -> int:
    return next((k for k, token in enumerate(drafted) if token != said[k]), len(drafted))
