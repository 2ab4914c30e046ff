"""Anchors, where training blocks start, and the label of each slot.

An anchor is a position whose token and next token are both supervised, so the first token of
an answer is an anchor but never a label, exactly as when serving (it comes from the target's
prefill). Slots run until the first one that is not supervised and no further.

Pure tensors; randomness is an argument. A text of T tokens, A anchors, k slots.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Labels(NamedTuple):
    """The labels of all blocks: the true tokens, and which slots count."""

    target_ids: Tensor  # [A, k] int64, true token at a+k (clamped to the text's end)
    eval_mask: Tensor  # [A, k] bool, a contiguous run from slot 1


def candidates(supervised: Tensor) -> Tensor:
    """supervised [T] bool -> bool [T]: whether this token and the next one are supervised."""
    return supervised & torch.nn.functional.pad(supervised[1:], (0, 1))


def draw_anchors(supervised: Tensor, num_anchors: int, *, generator: torch.Generator) -> Tensor:
    """Up to `num_anchors` candidates, uniform without replacement, ascending: [A].

    The keys are drawn on the generator's device, so a CPU generator gives the same anchors
    whatever the device of the text.
    """
    possible = candidates(supervised)
    keys = torch.rand(len(possible), generator=generator, device=generator.device)
    keys = keys.to(possible.device)
    # Every candidate sorts before every other position: rand() stays below 1.
    order = keys.masked_fill(~possible, 1.0).argsort(stable=True)[:num_anchors]
    return order[possible[order]].sort().values


def label_blocks(
    *, input_ids: Tensor, supervised: Tensor, anchors: Tensor, block_size: int
) -> Labels:
    """input_ids, supervised [T] -> labels of slots 1..k, x_{a+1} .. x_{a+k}."""
    # [A, k]
    index = anchors.unsqueeze(-1) + torch.arange(1, block_size + 1, device=input_ids.device)
    inside = index.clamp(max=len(input_ids) - 1)
    valid = (index == inside) & supervised[inside]
    # The first unsupervised slot ends the block, whatever follows it.
    return Labels(input_ids[inside], valid.long().cumprod(dim=-1).bool())


def slots_after(anchors: Tensor, block_size: int, length: int) -> Tensor:
    """Positions a, a+1, .. a+k-1 (clamped to the text's end): [A, k].

    The target's row at position a+k-1 predicts the token of slot k; the token at that position
    precedes it.
    """
    return (anchors.unsqueeze(-1) + torch.arange(block_size, device=anchors.device)).clamp(
        max=length - 1
    )
