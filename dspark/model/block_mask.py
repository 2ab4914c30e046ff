"""Who sees whom. True means visible; the last axis is [context rows ; block rows]."""

from __future__ import annotations

import torch
from torch import Tensor


def for_padded_context(context_len: Tensor, rows: int, block_size: int) -> Tensor:
    """context_len [n], S rows of which some are padding -> [n, 1, 1, S+k].

    One row serves all k queries: inside a block everybody sees the same.
    """
    index = torch.arange(rows + block_size, device=context_len.device)
    visible = (index < context_len.unsqueeze(-1)) | (index >= rows)
    return visible[:, None, None, :]


def for_training(anchor_positions: Tensor, block_keep_mask: Tensor, *, length: int, block_size: int) -> Tensor:
    """anchors [B, A], keep [B, A] -> [B, 1, A*k, T+A*k].

    Context rows strictly before the anchor, and the query's own block. A dummy block sees
    itself too, although its output is never read: a softmax over nothing would be NaN.
    """
    batch, anchors = anchor_positions.shape
    device = anchor_positions.device
    before = torch.arange(length, device=device) < anchor_positions.unsqueeze(-1)
    context = (before & block_keep_mask.unsqueeze(-1)).repeat_interleave(block_size, dim=1)
    owner = torch.arange(anchors, device=device).repeat_interleave(block_size)
    own = (owner.unsqueeze(-1) == owner).expand(batch, -1, -1)
    return torch.cat((context, own), dim=-1).unsqueeze(1)
