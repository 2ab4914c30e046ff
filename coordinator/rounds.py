"""One sequence's part in one round, and the arithmetic around it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator.policy import Fixed
from coordinator.ports import DraftOrder, Sink, VerifyOrder
from coordinator.prefix_scheduler import StepSeconds, schedule
from coordinator.track import Track
from dspark.types import NO_Q, Block, Cursor


@dataclass(slots=True)
class Turn:
    """What one sequence asks of a round, and what it got."""

    track: Track
    cursor: Cursor
    block: Block
    drafter_version: str = ""
    empty_because: str = ""
    prefix: int = 0

    @staticmethod
    def begin(track: Track) -> Turn:
        """With an empty block, which is an ordinary block."""
        cursor = track.sequence.cursor
        return Turn(track, cursor, Block(cursor))

    def wanted_slots(self, block_size: int) -> int:
        """Slots worth drafting: the target's own token takes one place of what the answer has left."""
        slots = min(block_size, self.track.answer.room - 1)
        policy = self.track.request.policy
        return min(slots, policy.slots) if isinstance(policy, Fixed) else slots

    def draft_order(self, block_size: int) -> DraftOrder:
        return DraftOrder(
            self.cursor, self.track.answer.log.anchor, self.track.request.law, self.wanted_slots(block_size)
        )

    def verify_order(self, sink: Sink | None) -> VerifyOrder:
        """q is cut as opaque bytes: a fixed number of entries per slot."""
        q = self.block.q.prefix(self.prefix) if self.prefix else NO_Q
        ids = self.block.token_ids[: self.prefix]
        return VerifyOrder(self.cursor, self.track.answer.log.anchor, ids, q, sink, self.drafter_version)


def choose_prefixes(turns: Sequence[Turn], step_seconds: StepSeconds | None) -> None:
    """Sets each turn's prefix."""
    lengths = np.array([len(turn.block.token_ids) for turn in turns], np.int64)
    widest = int(lengths.max(initial=0))
    if widest == 0:
        return
    confidence = np.full((len(turns), widest), np.nan)
    for row, turn in enumerate(turns):
        confidence[row, : lengths[row]] = turn.block.confidence
    chosen = schedule(confidence, lengths, [turn.track.request.policy for turn in turns], step_seconds)
    for turn, prefix in zip(turns, chosen.tolist(), strict=True):
        turn.prefix = min(prefix, turn.track.answer.room - 1)


def mean_context(turns: Sequence[Turn]) -> float:
    """Mean committed length of a cohort."""
    return sum(turn.cursor.committed_len for turn in turns) / max(len(turns), 1)
