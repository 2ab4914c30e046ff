"""Types shared by the services, an engine and the runner of its batches. No torch.

The thread that owns sequences and KV blocks prepares and commits a batch; any thread executes it.
Two runners exist: `packed_runner.PackedRunner` runs a target, `SyntheticVerifyEngine` sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dspark.pages import Slots
from dspark.types import Draws, Refusal, Verdict
from dspark.wire.orders import PackedRows
from verify_service.sequences import CachedSequence, VerifyItem

if TYPE_CHECKING:
    from dspark.decoding.masking import Matcher

T = TypeVar("T")


class FeatureRun(NamedTuple):
    """Feature rows of consecutive positions of one sequence, with the token at each."""

    sequence: int
    epoch: int
    start: int
    token_ids: Sequence[int]
    rows: PackedRows


class VerdictBatch(NamedTuple):
    """Result of verifying a cohort, outcomes in the order of the items."""

    outcomes: list[Verdict | Refusal]
    tokens: int  # of the items, in the packed passes
    forward_ns: int
    prefill_tokens: int = 0  # of prompt chunks in the same passes
    near_ties: int = 0  # positions of coupled sequences where rounding could change the token
    # labels: by sequence, [slots, 2] float32: probability that the rule reaches a slot, and that it
    # accepts it too. draws: statistics by drafter version. See `dspark/decoding/draws.py`.
    labels: Mapping[int, npt.NDArray[np.float32]] = MappingProxyType({})
    draws: Sequence[Draws] = ()


class KeptRows(NamedTuple):
    """Sent with an order: feature rows, concatenated sequence by sequence, and grammar masks."""

    counts: list[int]  # of each sequence; 0 where none are kept
    token_ids: list[int]  # one per row
    features: PackedRows | None  # None without rows
    # allowed next tokens per sequence, see `first_masked`; () if no sequence has a grammar
    masks: Sequence[bytes] = ()


class TooSlow(Exception):
    """A grammar takes too long to compute the allowed next tokens."""


Grammar = Callable[[], "Matcher"]  # a compiled grammar: makes a matcher at the start of an answer


class TargetFacts(Protocol):
    """Facts about the served target."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def stop_ids(self) -> Sequence[int]: ...


class PromptChunk(NamedTuple):
    """The next tokens of a prompt to run in one pass."""

    state: CachedSequence
    token_ids: Sequence[int]
    # for a scored prompt: the token after each of these, except the prompt's last
    next_ids: Sequence[int]
    slots: Slots  # of all its tokens so far

    @property
    def ends(self) -> bool:
        """Whether it ends its prompt; to be asked before it is committed."""
        return self.state.cached + len(self.token_ids) == self.state.prompt_len


class BatchRow(NamedTuple, Generic[T]):
    """One item of a step. tokens: in the pass, with those of a draft that was removed since;
    inputs: what else its runner takes of it."""

    place: int  # among the items of the step
    item: VerifyItem
    state: CachedSequence
    tokens: int
    inputs: T


class PreparedBatch(NamedTuple, Generic[T]):
    """Inputs of one pass of a step, unchanged until it has ended."""

    rows: Sequence[BatchRow[T]]
    chunks: Sequence[PromptChunk]
    began_ns: int  # when the preparation of its step began

    @property
    def states(self) -> list[CachedSequence]:
        return [*(row.state for row in self.rows), *(chunk.state for chunk in self.chunks)]

    @property
    def tokens(self) -> int:
        """Tokens of the verified items, without prompt chunks."""
        return sum(row.tokens for row in self.rows)


class RuleStatistics(NamedTuple):
    """Statistics of the acceptance rule for one batch, see `VerdictBatch`."""

    near_ties: int = 0
    labels: Mapping[int, npt.NDArray[np.float32]] = MappingProxyType({})
    draws: Sequence[Draws] = ()


class ExecutedBatch(NamedTuple):
    """Result of a batch before it is committed. made: as its runner needs it."""

    prepared: PreparedBatch[Any]
    saw: RuleStatistics = RuleStatistics()
    made: Any = None


class BatchRunner(Protocol):
    """Runs the batches of one engine. `execute` may run on any thread, all else on the one that
    owns the sequences."""

    def forget(self, state: CachedSequence) -> None:
        """Frees what is held for a dropped sequence beside its KV blocks."""

    def inputs(self, item: VerifyItem, state: CachedSequence) -> Any | Refusal:
        """What a batch takes of an item, or why it cannot be judged."""

    def execute(self, prepared: PreparedBatch[Any]) -> ExecutedBatch:
        """Runs a batch. Blocks that cannot have been drafted count as empty. If it raises, nothing
        is committed, and the batch or a part of it may be run again."""

    def commit(self, executed: ExecutedBatch) -> Sequence[Verdict | Refusal]:
        """Commits a batch; returns the outcome of each item."""
