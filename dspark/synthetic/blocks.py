"""Blocks of synthetic drafts: ids, confidences and the sparse distributions the ids were drawn from.

Every slot's q is one Zipf law over `entries` neighbouring ids; the drafted id stands at a rank drawn by that very law,
so q is what the id was drawn from. Greedy sequences send one entry, coupled ones none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.synthetic.law import Ints, KeyPurpose, SyntheticLaw, keyed, uniform
from dspark.types import NO_Q, Block, Cursor, Rule, SamplingParams, SparseQ


class BlockMaker:
    """Makes the blocks of one cohort at once."""

    def __init__(self, law: SyntheticLaw, entries: int) -> None:
        self._law = law
        self._entries = entries
        shares = 1.0 / np.arange(1, entries + 1) ** 1.5
        self._probs = (shares / shares.sum()).astype("<f4")
        self._edges = np.cumsum(shares / shares.sum())

    def make(
        self,
        *,
        cursors: Sequence[Cursor],
        laws: Sequence[SamplingParams],
        first_tokens: Sequence[int],
        slots: Sequence[int],
        watermarks: Sequence[int],
    ) -> list[Block]:
        """One block per sequence; `slots` 0 means a full one."""
        law, size = self._law, self._law.slots
        keys = np.array(
            [law.key(first, one.seed, one.choice) for first, one in zip(first_tokens, laws, strict=True)], np.uint64
        )
        domains = np.array([law.domain(first) for first in first_tokens])
        anchors = np.array([cursor.anchor_position for cursor in cursors])
        drafted, chances = law.draft(keys, domains, anchors)
        confidences = law.confidences(keys, anchors, chances)
        ranks = np.zeros(drafted.shape, np.int64)
        if not all(one.greedy for one in laws):
            hashes = keyed(keys[:, None], KeyPurpose.RANK, anchors[:, None], np.arange(size))
            ranks = np.minimum(np.searchsorted(self._edges, uniform(hashes), side="right"), self._entries - 1)
        blocks = []
        for row, (cursor, one, watermark) in enumerate(zip(cursors, laws, watermarks, strict=True)):
            wanted = min(slots[row] or size, size)
            q = self._q(drafted[row, :wanted], ranks[row, :wanted], one)
            ids, sure = drafted[row, :wanted].tolist(), confidences[row, :wanted].tolist()
            blocks.append(Block(cursor, tuple(ids), tuple(sure), q, watermark=watermark))
        return blocks

    def _q(self, ids: Ints, ranks: Ints, law: SamplingParams) -> SparseQ:
        if law.rule is Rule.COUPLED:
            return NO_Q
        if law.greedy:
            return SparseQ(1, ids.astype("<u4").tobytes(), b"\0\0\x80?" * len(ids))
        span = (ids - ranks)[:, None] + np.arange(self._entries)
        entries = (span % self._law.spec.vocabulary).astype("<u4")
        return SparseQ(self._entries, entries.tobytes(), self._probs.tobytes() * len(ids))
