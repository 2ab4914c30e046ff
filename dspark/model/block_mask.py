"""Who sees whom. True means visible; the last axis of a mask is [context rows ; block rows]."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Blocks in order of their anchors, a quarter at a time: early ones then skip the context rows
# that none of them may see. More groups save little more and cost launches.
_GROUPS = 4


class QueryGroup(NamedTuple):
    """A run of queries that share one attention call."""

    queries: slice  # into the A*k queries
    context_rows: slice  # only these context rows are passed
    mask: Tensor  # [B, 1, Q', S'+Q']


def for_padded_context(context_len: Tensor, rows: int, block_size: int) -> Tensor:
    """context_len [n], S rows of which some are padding -> [n, 1, 1, S+k].

    One row serves all k queries: inside a block everybody sees the same.
    """
    index = torch.arange(rows + block_size, device=context_len.device)
    visible = (index < context_len.unsqueeze(-1)) | (index >= rows)
    return visible[:, None, None, :]


def for_training(
    anchor_positions: Tensor, block_keep_mask: Tensor, *, block_size: int, first_rows: Tensor | None = None
) -> list[QueryGroup]:
    """anchors [B, A], keep [B, A] -> groups that together cover all A*k queries in order.

    A query sees the context rows strictly before its anchor, and its own block. `first_rows` [B, A] says where its
    text begins, for texts packed back to back into one row: rows before it belong to others. A dummy block sees
    itself too, although its output is never read: a softmax over nothing would be NaN.
    """
    kept = anchor_positions * block_keep_mask
    begins = torch.zeros_like(kept) if first_rows is None else first_rows * block_keep_mask
    step = -(-anchor_positions.shape[1] // _GROUPS)
    groups = []
    for start in range(0, anchor_positions.shape[1], step):
        part = kept[:, start : start + step]  # [B, A']
        first = begins[:, start : start + step]
        anchors, rows = part.shape[1], slice(int(first.min()), int(part.max()))
        index = torch.arange(rows.start, rows.stop, device=part.device)
        before = (index >= first.unsqueeze(-1)) & (index < part.unsqueeze(-1))
        owner = torch.arange(anchors, device=part.device).repeat_interleave(block_size)
        own = (owner.unsqueeze(-1) == owner).expand(len(part), -1, -1)
        mask = torch.cat((before.repeat_interleave(block_size, dim=1), own), dim=-1).unsqueeze(1)
        queries = slice(start * block_size, (start + anchors) * block_size)
        groups.append(QueryGroup(queries, rows, mask))
    return groups
