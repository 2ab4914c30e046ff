"""What services, an engine and what runs its batches tell each other. No torch.

Batches are prepared where sequences and KV blocks live, executed on any thread, committed. Two run
them: `packed_step.PackedStep`, which runs a target, and `synthetic.SyntheticStep`, which sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dspark.types import Draws, Refusal, Verdict
from dspark.wire.orders import PackedRows
from verify_service.sequences import CachedSequence, VerifyItem

if TYPE_CHECKING:
    from dspark.decoding.masking import Matcher


class FeatureRun(NamedTuple):
    """Feature rows of consecutive positions of one sequence, with the token at each."""

    sequence: int
    epoch: int
    start: int
    token_ids: Sequence[int]
    rows: PackedRows


@dataclass(frozen=True, slots=True, eq=False)
class PromptPrefill:
    """One prompt on its way in."""

    sequence: int
    epoch: int
    token_ids: Sequence[int]
    owner: int = 0  # who takes its news


@dataclass(frozen=True, slots=True)
class Progress:
    """What one chunk of a prompt brought."""

    prefill: PromptPrefill
    tokens: int = 0
    done: bool = False  # all of the prompt has run
    problem: Refusal | None = None  # set when it cannot go on


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcomes in the order of the items."""

    outcomes: list[Verdict | Refusal]
    tokens: int  # of the items, in the packed passes
    forward_ns: int
    # of prompts that rode along; what came of them is `PromptLine.take_news`
    prefill_tokens: int = 0
    near_ties: int = 0  # positions of coupled sequences that rounding could decide otherwise
    # By sequence, [slots, 2] float32: the chance to get to each slot judged, and to keep it too;
    # and what the rule saw of the drafted tokens. See `dspark/decoding/draws.py`.
    labels: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    draws: Sequence[Draws] = ()


class KeptRows(NamedTuple):
    """What travels with an order: feature rows, those of one sequence after those of the other, and
    masks."""

    counts: list[int]  # of each sequence; 0 where none are kept
    token_ids: list[int]  # at each position
    features: PackedRows | None  # None where there are none
    masks: Sequence[
        bytes
    ] = ()  # what each answer's form lets come next, see `first_masked`; none has a form: none


class TooSlow(Exception):
    """Finding out what may come next takes longer than anybody waits for."""


Grammar = Callable[
    [], "Matcher"
]  # a form of answers, compiled: makes a matcher at the beginning of one


class TargetFacts(Protocol):
    """What is served."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def stop_ids(self) -> Sequence[int]: ...


class PromptChunk(NamedTuple):
    """The next tokens of a prompt."""

    state: CachedSequence
    token_ids: Sequence[int]
    next_ids: Sequence[
        int
    ] = ()  # where the prompt is scored: the token behind each of them, but the prompt's last


Rider = tuple[PromptPrefill, PromptChunk]  # a prompt in a pass


class PreparedBatch(Protocol):
    """What a batch is run on; all of it stays as it is until the batch has ended."""

    @property
    def states(self) -> Sequence[CachedSequence]:
        """Of the items."""

    @property
    def chunks(self) -> Sequence[PromptChunk]: ...

    @property
    def tokens(self) -> int:
        """Of the items."""

    def part(self, places: Sequence[int]) -> PreparedBatch:
        """Some of its items alone, by their places. Reads no sequence: some may have left
        meanwhile."""


class RuleSaw(NamedTuple):
    """What the rule saw of one batch, see `Judged`."""

    near_ties: int = 0
    labels: Mapping[int, npt.NDArray[np.float32]] = MappingProxyType({})
    draws: Sequence[Draws] = ()


class ExecutedBatch(Protocol):
    """What a batch brought, and nobody knows yet."""

    @property
    def prepared(self) -> PreparedBatch: ...

    @property
    def saw(self) -> RuleSaw: ...


class BatchRunner(Protocol):
    """Of one engine. `execute` may run on any thread, everything else on the one that owns the
    sequences."""

    def forget(self, sequence: int) -> None:
        """It was dropped, and so is what is held for it beside its KV blocks."""

    def unready(self, state: CachedSequence) -> Refusal | None:
        """Why a sequence cannot be judged, found out before anybody else is in a batch with it."""

    def prepare(
        self, items: Sequence[VerifyItem], chunks: Sequence[PromptChunk]
    ) -> PreparedBatch: ...

    def execute(self, prepared: Any) -> ExecutedBatch:
        """Blocks that cannot have been drafted count as empty. Whatever it raises, nothing is
        committed: the same, or a part of it, may be run again."""

    def commit(self, executed: Any) -> Sequence[Verdict | Refusal]:
        """What became of each item."""
