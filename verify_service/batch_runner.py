"""What runs the batches of an engine: prepared where sequences and KV blocks live, executed on any thread, committed.

Two keep it: `packed_step.PackedStep`, which runs a target, and `synthetic.SyntheticStep`, which sleeps. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dspark.types import Draws, Refusal, Verdict
from verify_service.sequences import CachedSequence, VerifyItem


class PromptChunk(NamedTuple):
    """The next tokens of a prompt."""

    state: CachedSequence
    token_ids: Sequence[int]
    next_ids: Sequence[int] = ()  # where the prompt is scored: the token behind each of them, but the prompt's last


class PreparedBatch(Protocol):
    """What a batch is run on; all of it stays as it is until the batch has ended."""

    @property
    def states(self) -> Sequence[CachedSequence]:
        """Of the items."""

    @property
    def chunks(self) -> Sequence[PromptChunk]: ...

    def part(self, places: Sequence[int]) -> PreparedBatch:
        """Some of its items alone, by their places. Reads no sequence: some may have left meanwhile."""


class ExecutedBatch(Protocol):
    """What a batch brought, and nobody knows yet."""

    @property
    def prepared(self) -> PreparedBatch: ...


class BatchFailed(Exception):
    """The target did not run, for the reason that caused this. Nothing was committed: the same may be run again."""


class Stepped(NamedTuple):
    """What became of each item."""

    outcomes: Sequence[Verdict | Refusal]
    tokens: int  # of the items


class BatchRunner(Protocol):
    """Of one engine. `execute` may run on any thread, everything else on the one that owns the sequences."""

    def unready(self, state: CachedSequence) -> Refusal | None:
        """Why a sequence cannot be judged, found out before anybody else is in a batch with it."""

    def prepare(self, items: Sequence[VerifyItem], chunks: Sequence[PromptChunk]) -> PreparedBatch: ...

    def execute(self, prepared: Any) -> ExecutedBatch:
        """Blocks that cannot have been drafted count as empty. Raises BatchFailed where the target did not run."""

    def commit(self, executed: Any) -> Stepped: ...

    def take_near_ties(self) -> int:
        """Near-ties of coupled sequences since the last call. By whoever executed."""

    def take_draws(self, items: Sequence[VerifyItem]) -> tuple[Mapping[int, npt.NDArray[np.float32]], Sequence[Draws]]:
        """What the rule saw since the last call: labels by sequence, and sums by drafters. By whoever executed."""


def spoil(prepared: PreparedBatch) -> None:
    """Nobody knows what lies in their KV blocks now, so nobody else shall find them."""
    for state in (*prepared.states, *(chunk.state for chunk in prepared.chunks)):
        state.salt = None
