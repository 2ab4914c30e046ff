"""Whether blocks that came from a drafter can have been drawn from the distributions that came with them. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dspark.decoding.sparse_q import validate_q
from dspark.types import Block


def unsound(blocks: Sequence[Block], coupled: Sequence[bool], vocab_size: int) -> Iterator[int]:
    """Places of blocks that cannot. All of a kind are looked at together; only where some are bad, one by one.

    coupled: whether a block needs no distributions, and must have none.
    """
    by_entries: dict[int, list[int]] = {}
    for row, (block, none) in enumerate(zip(blocks, coupled, strict=True)):
        if not block.token_ids:
            continue
        if (block.q.entries == 0) is not none:
            yield row
        elif not none:
            by_entries.setdefault(block.q.entries, []).append(row)
    for entries, rows in by_entries.items():
        if not _sound([blocks[row] for row in rows], entries, vocab_size):
            yield from (row for row in rows if not _sound([blocks[row]], entries, vocab_size))


def _sound(blocks: Sequence[Block], entries: int, vocab_size: int) -> bool:
    ids = np.frombuffer(b"".join([block.q.ids for block in blocks]), "<u4").reshape(-1, entries)
    probs = np.frombuffer(b"".join([block.q.probs for block in blocks]), "<f4").reshape(-1, entries)
    drafted = [token for block in blocks for token in block.token_ids]
    return validate_q(ids, probs, drafted, vocab_size) is None
