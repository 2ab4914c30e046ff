"""One sequence's part in one round, a cohort's in columns, and the arithmetic around them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from coordinator.lanes.ports import DraftOrder, Sink, VerifyOrder
from coordinator.lanes.sequence import State
from coordinator.lanes.track import Track
from dspark.rounds.policy import Columns, Fixed
from dspark.rounds.schedule import Floats, Ints, StepSeconds, schedule, survival
from dspark.types import NO_Q, Block, Cursor

NO_BLOCK = Block(Cursor(0, 0, 0, 0))  # what a turn holds until something was drafted


@dataclass(slots=True)
class Turn:
    """What one sequence asks of a round, and what it got."""

    track: Track
    cursor: Cursor
    block: Block
    drafter_version: str = ""
    empty_because: str = ""
    prefix: int = 0
    slots: int = 0  # wanted of a drafter

    @staticmethod
    def begin(track: Track) -> Turn:
        """With an empty block, which is an ordinary block."""
        return Turn(track, track.sequence.cursor, NO_BLOCK)

    def want(self, longest: int) -> None:
        """Settles how many slots are drafted: the target's own token takes one place of what the answer has left."""
        policy = self.track.request.policy
        slots = policy.slots if isinstance(policy, Fixed) else longest
        self.slots = min(slots, self.track.answer.room - 1)

    def stands(self, state: State) -> bool:
        """Whether the sequence is still what it was when the turn began, in this state."""
        sequence = self.track.sequence
        return sequence.state is state and sequence.epoch == self.cursor.epoch

    def draft_order(self, block_size: int) -> DraftOrder:
        track, slots = self.track, self.slots
        return DraftOrder(
            self.cursor, track.answer.log.anchor, track.request.law, slots if slots < block_size else block_size
        )

    def verify_order(self, sink: Sink | None) -> VerifyOrder:
        """q is cut as opaque bytes: a fixed number of entries per slot.

        The version is for the monitor, whose bets hold for draws that cannot be repeated; a client with a seed can.
        """
        q = self.block.q.prefix(self.prefix) if self.prefix else NO_Q
        ids = self.block.token_ids[: self.prefix]
        version = "" if self.track.request.seeded else self.drafter_version
        return VerifyOrder(self.cursor, self.track.answer.log.anchor, ids, q, sink, version)


class Blocks(NamedTuple):
    """What was drafted for a cohort, in numbers."""

    confidence: Floats  # [n, k]; NaN beyond each block
    lengths: Ints  # [n]

    @staticmethod
    def of(turns: Sequence[Turn]) -> Blocks:
        drafts = [turn.block.confidence for turn in turns]
        lengths = np.array(list(map(len, drafts)), np.int64)
        if len(drafts) and bool((lengths == lengths[0]).all()):  # nearly always
            return Blocks(np.array(drafts, np.float64), lengths)
        confidence = np.full((len(turns), int(lengths.max(initial=0))), np.nan)
        inside = np.arange(confidence.shape[1]) < lengths[:, None]
        confidence[inside] = np.fromiter(chain.from_iterable(drafts), np.float64, int(lengths.sum()))
        return Blocks(confidence, lengths)

    def alive(self) -> Floats:
        """Survival [n, k]."""
        return survival(self.confidence, self.lengths)


class Terms(NamedTuple):
    """What was settled before the draft of a cohort."""

    step_seconds: StepSeconds | None
    base_tokens: float = 0.0
    budget: int | None = None


def choose_prefixes(
    turns: Sequence[Turn],
    blocks: Blocks,
    policies: Columns,
    terms: Terms,
    weights: Floats | None = None,
    trust: Floats | None = None,
) -> None:
    """Sets each turn's prefix."""
    chosen = schedule(
        *blocks, policies, terms.step_seconds, terms.base_tokens, weights=weights, trust=trust, budget=terms.budget
    )
    for turn, prefix in zip(turns, chosen.tolist(), strict=True):
        if prefix:
            turn.prefix = min(prefix, turn.track.answer.room - 1)


def mean_context(turns: Sequence[Turn]) -> float:
    """Mean committed length of a cohort."""
    return sum(turn.cursor.committed_len for turn in turns) / max(len(turns), 1)
