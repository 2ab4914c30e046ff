"""Whether blocks that came from a drafter can have been drawn from the distributions that came with them. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from dspark.decoding.sparse_q import validate_q
from dspark.types import SparseQ
from dspark.wire.blocks import Blocks


def unsound(blocks: Blocks, coupled: Sequence[bool | None], vocab_size: int) -> list[int]:
    """Rows that cannot. All of a kind are looked at together; only where some are bad, one by one.

    coupled: whether a row needs no distributions, and must have none; None where nobody waits for it any more.
    """
    bad: list[int] = []
    by_entries: dict[int, list[int]] = {}
    for row, (slots, entries, none) in enumerate(zip(blocks.lengths, blocks.entries, coupled, strict=True)):
        if not slots or none is None:
            continue
        if (entries == 0) is not none:
            bad.append(row)
        elif not none:
            by_entries.setdefault(entries, []).append(row)
    for rows in by_entries.values():
        if not _sound(blocks, rows, vocab_size):
            bad += [row for row in rows if not _sound(blocks, [row], vocab_size)]
    return bad


def _sound(blocks: Blocks, rows: Sequence[int], vocab_size: int) -> bool:
    ids, q = blocks.token_ids, SparseQ(blocks.entries[rows[0]], blocks.q_ids, blocks.q_probs)
    if sum([blocks.lengths[row] for row in rows]) < len(ids):  # else it is all of them
        drafted = [blocks.drafted(row, blocks.lengths[row]) for row in rows]
        ids = tuple([token for own, _ in drafted for token in own])
        q = SparseQ(q.entries, b"".join([own.ids for _, own in drafted]), b"".join([own.probs for _, own in drafted]))
    return validate_q(*q.arrays(), ids, vocab_size) is None
