"""Checks that drafted tokens can have been drawn from the distributions sent with them. No torch.

The check runs while a pass runs, because the pass needs the tokens alone. An unsound block counts
as empty and none of it is judged. An honest drafter's block is never unsound, so a drafted token
never decides whether it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from dspark.decoding.sparse_q import sound_q
from dspark.types import Rule, SparseQ
from verify_service.batch_runner import BatchRow, PreparedBatch
from verify_service.sequences import VerifyItem

T = TypeVar("T")


def sound(batch: PreparedBatch[T], vocab_size: int) -> PreparedBatch[T]:
    """The batch with unsound drafts removed from the rule."""
    rows = list(batch.rows)
    for place in unsound(rows, vocab_size):
        rows[place] = rows[place]._replace(item=rows[place].item.without_draft())
    return batch._replace(rows=rows)


def unsound(rows: Sequence[BatchRow[Any]], vocab_size: int) -> list[int]:
    """Indices of unsound items, also of those with distributions under `coupled`, or none under
    another rule. Items with equal `entries` are checked together, one by one if that fails."""
    bad: list[int] = []
    by_entries: dict[int, list[int]] = {}
    for place, (_, item, state, *_) in enumerate(rows):
        entries, size = item.q.entries, 4 * item.q.entries * len(item.draft_ids)
        if not item.draft_ids:
            continue
        if (entries == 0) is not (state.params.rule is Rule.COUPLED) or (
            len(item.q.ids),
            len(item.q.probs),
        ) != (size, size):
            bad.append(place)
        elif entries:
            by_entries.setdefault(entries, []).append(place)
    for entries, places in by_entries.items():
        alike = [rows[place].item for place in places]
        if not _sound(entries, alike, vocab_size):
            bad += [
                place for place in places if not _sound(entries, [rows[place].item], vocab_size)
            ]
    return bad


def _sound(entries: int, items: Sequence[VerifyItem], vocab_size: int) -> bool:
    ids = [token for item in items for token in item.draft_ids]
    q = SparseQ(
        entries,
        b"".join([item.q.ids for item in items]),
        b"".join([item.q.probs for item in items]),
    )
    return sound_q(*q.arrays(), ids, vocab_size)
