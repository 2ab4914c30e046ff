"""Where training blocks start, and what each slot should have said.

An anchor is a position whose token and next token are both supervised, so the first token of
an answer is an anchor but never a label, exactly as when serving (it comes from the target's
prefill). Slots run until the first one that is not supervised and no further.

Pure tensors; randomness is an argument. B rows, T tokens, A anchors per row, k slots.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Anchors(NamedTuple):
    """Drawn block starts; missing ones sit at position 0 and are not kept."""

    positions: Tensor  # [B, A] int64, ascending where kept
    keep: Tensor  # [B, A] bool


class Labels(NamedTuple):
    """What slot k of each block is judged by."""

    target_ids: Tensor  # [B, A, k] int64, true token at a+k (clamped to the row's end)
    eval_mask: Tensor  # [B, A, k] bool, a contiguous run from slot 1


def candidates(loss_mask: Tensor) -> Tensor:
    """loss_mask [B, T] -> bool [B, T]: supervised, and so is the next token."""
    supervised = loss_mask > 0
    following = torch.zeros_like(supervised)
    following[:, :-1] = supervised[:, 1:]
    return supervised & following


def draw_anchors(loss_mask: Tensor, num_anchors: int, *, generator: torch.Generator | None = None) -> Anchors:
    """Up to `num_anchors` candidates per row, uniform without replacement, in order.

    The keys are drawn where the generator lives, so a CPU generator gives the same anchors
    whatever the device of the mask.
    """
    possible = candidates(loss_mask)
    batch, length = possible.shape
    where = generator.device if generator is not None else possible.device
    keys = torch.rand(batch, length, generator=generator, device=where).to(possible.device)
    # Every candidate sorts before every other position: rand() stays below 1.
    order = keys.masked_fill(~possible, 1.0).argsort(dim=1, stable=True)[:, :num_anchors]
    keep = possible.gather(1, order)
    positions = order.masked_fill(~keep, length).sort(dim=1).values
    keep = positions < length
    return Anchors(positions.masked_fill(~keep, 0), keep)


def label_blocks(*, input_ids: Tensor, loss_mask: Tensor, anchors: Anchors, block_size: int) -> Labels:
    """input_ids, loss_mask [B, T] -> labels of slots 1..k, x_{a+1} .. x_{a+k}."""
    batch, length = input_ids.shape
    slots = torch.arange(1, block_size + 1, device=input_ids.device)
    index = anchors.positions.unsqueeze(-1) + slots  # [B, A, k]
    inside = index < length
    flat = index.clamp(max=length - 1).view(batch, -1)
    supervised = (loss_mask > 0).gather(1, flat).view(index.shape)
    valid = inside & supervised & anchors.keep.unsqueeze(-1)
    return Labels(
        target_ids=input_ids.gather(1, flat).view(index.shape),
        # The first unsupervised slot ends the block, whatever follows it.
        eval_mask=valid.long().cumprod(dim=-1).bool(),
    )


def gather_slots(rows: Tensor, anchor_positions: Tensor, block_size: int) -> Tensor:
    """rows [B, T, ...] at positions a, a+1, .. a+k-1 (clamped) -> [B, A, k, ...].

    Row a+k-1 of the target is the one that predicts slot k's token.
    """
    batch, length = rows.shape[:2]
    slots = torch.arange(block_size, device=rows.device)
    index = (anchor_positions.unsqueeze(-1) + slots).clamp(max=length - 1)
    batch_index = torch.arange(batch, device=rows.device)[:, None, None]
    return rows[batch_index, index]
