"""The contexts of many blocks that start inside one text: what evaluation and replay feed to `propose`.

All blocks share one set of entries and differ in how many of them count, so nothing is copied per block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dspark.model.family import ContextTokens, Drafter, Entries


def entries_at(
    drafter: Drafter,
    *,
    features: Tensor | None,  # [T, m*H] raw taps; None where needs.row is false
    token_ids: Tensor,  # [T] int64
    anchors: Tensor,  # [A] int64, positions of the anchors, at least needs.lag
) -> tuple[Entries, Tensor | None]:
    """(entries of A blocks as views, the rows before the anchors [A, H] where needs.lag)."""
    needs, length = drafter.needs, len(token_ids)
    rows = drafter.project(features) if needs.row and features is not None else None
    count = length - needs.lag
    tokens = ContextTokens(
        rows=None if rows is None else rows[:count],
        token_ids=None if needs.token == "none" else token_ids[needs.lag :],
        positions=torch.arange(count, device=token_ids.device),
    )
    if needs.past:
        tokens = ContextTokens(rows=None, token_ids=token_ids.unsqueeze(0), positions=tokens.positions.unsqueeze(0))
    keys, values = drafter.ingest(tokens)
    if not needs.past:
        keys, values = keys.unsqueeze(1), values.unsqueeze(1)
    size = (-1, len(anchors), -1, -1, -1)
    entries = Entries(keys.expand(size), values.expand(size), anchors - needs.lag)
    return entries, rows[anchors - 1] if needs.lag and rows is not None else None
