"""What tests of a drafter's engine begin with: contexts that are filled, and what is asked of a
block."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from draft_service.config import DraftConfig
from draft_service.engine import DraftEngine, DraftItem
from dspark.types import Cursor, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
SPARE = 180  # tokens that a context may still grow by


def draft_engine(folder: Path, **settings: Any) -> DraftEngine:
    return DraftEngine.load(DraftConfig(drafter=str(folder), context_tokens=4096, **settings))


def fill(
    engine: DraftEngine, sequence: int, ids: Sequence[int], rows: torch.Tensor | None = None
) -> Cursor:
    """Opens a context and gives it the rows of these tokens, random ones unless told; the cursor of
    the first block behind them."""
    assert engine.open(Cursor(sequence, 1, 0, len(ids)), len(ids) + SPARE) is None
    if rows is None:
        draws = torch.Generator().manual_seed(sequence)
        rows = torch.randn(len(ids), engine.shape.hidden_size, generator=draws)
    assert engine.ingest(sequence, 1, 0, list(ids), rows) == len(ids)
    return Cursor(sequence, 1, 1, len(ids) + 1)


def item(
    cursor: Cursor, params: SamplingParams = GREEDY, anchor: int = 7, slots: int = 0
) -> DraftItem:
    """A block behind all that is committed."""
    return DraftItem(cursor, anchor, cursor.committed_len - 1, params, slots)
