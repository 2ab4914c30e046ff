"""Blocks of synthetic drafts: ids, confidences and the sparse distributions the ids were drawn
from.

Every slot's q is one Zipf distribution over `entries` neighbouring ids; the drafted id stands at a
rank drawn by that very distribution, so q is what the id was drawn from. Greedy sequences send one
entry, coupled ones none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dspark.synthetic.oracle import Ints, KeyPurpose, SyntheticOracle, keyed, uniform
from dspark.types import NO_Q, Block, Cursor, Rule, SamplingParams, SparseQ


class BlockMaker:
    """Makes the blocks of one cohort at once."""

    def __init__(self, oracle: SyntheticOracle, entries: int) -> None:
        self._oracle = oracle
        self._entries = entries
        shares = 1.0 / np.arange(1, entries + 1) ** 1.5
        self._probs = (shares / shares.sum()).astype("<f4")
        self._edges = np.cumsum(shares / shares.sum())

    def make(
        self,
        *,
        cursors: Sequence[Cursor],
        all_params: Sequence[SamplingParams],
        first_tokens: Sequence[int],
        slots: Sequence[int],
        watermarks: Sequence[int],
    ) -> list[Block]:
        """One block per sequence; `slots` 0 means a full one."""
        oracle, size = self._oracle, self._oracle.slots
        keys = np.array(
            [
                oracle.key(first, one.seed, one.choice)
                for first, one in zip(first_tokens, all_params, strict=True)
            ],
            np.uint64,
        )
        domains = np.array([oracle.domain(first) for first in first_tokens])
        anchors = np.array([cursor.anchor_position for cursor in cursors])
        drafted, chances = oracle.draft(keys, domains, anchors)
        confidences = oracle.confidences(keys, anchors, chances)
        ranks = np.zeros(drafted.shape, np.int64)
        if not all(one.greedy for one in all_params):
            hashes = keyed(keys[:, None], KeyPurpose.RANK, anchors[:, None], np.arange(size))
            ranks = np.minimum(
                np.searchsorted(self._edges, uniform(hashes), side="right"), self._entries - 1
            )
        blocks = []
        for row, (cursor, one, watermark) in enumerate(
            zip(cursors, all_params, watermarks, strict=True)
        ):
            wanted = min(slots[row] or size, size)
            q = self._q(drafted[row, :wanted], ranks[row, :wanted], one)
            ids, sure = drafted[row, :wanted].tolist(), confidences[row, :wanted].tolist()
            blocks.append(Block(cursor, tuple(ids), tuple(sure), q, watermark=watermark))
        return blocks

    def _q(self, ids: Ints, ranks: Ints, params: SamplingParams) -> SparseQ:
        if params.rule is Rule.COUPLED:
            return NO_Q
        if params.greedy:
            return SparseQ.sure(ids)
        span = (ids - ranks)[:, None] + np.arange(self._entries)
        entries = (span % self._oracle.spec.vocabulary).astype("<u4")
        return SparseQ(self._entries, entries.tobytes(), self._probs.tobytes() * len(ids))
