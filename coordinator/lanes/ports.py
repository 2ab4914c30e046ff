"""What a lane needs from a verifier and a drafter: two Protocols, and the nouns that pass through them.

A port never blocks: a command returns a future at once. It fails with `Lost` the moment the worker is known to be
gone; how long to wait for it otherwise is the lane's decision. No messages and no sockets here.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from coordinator.scheduling.cost_curve import CostCurve
from dspark.errors import Lost as Lost  # what a port's future fails with
from dspark.types import Block, Cursor, Draws, Law, PromptLogprobs, RefusalReason, SparseQ, TokenLogprobs, Verdict


@dataclass(frozen=True, slots=True)
class Declined:
    """One sequence was not served; its neighbours were."""

    cursor: Cursor
    why: RefusalReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Sink:
    """Where feature rows go."""

    endpoint: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """What a verifier said it is."""

    name: str
    endpoint: str
    incarnation: int
    pid: int
    model: str
    fingerprint: str
    vocab_size: int
    context_length: int
    hidden_size: int
    projection: str
    page_size: int
    pages_total: int
    attention_path: str
    stop_token_ids: tuple[int, ...]
    cost: CostCurve | None

    @property
    def capacity(self) -> int:
        """Tokens the whole page pool holds; 0 when it does not say."""
        return self.page_size * self.pages_total


@dataclass(frozen=True, slots=True)
class DrafterFacts:
    """What a drafter said it is."""

    name: str
    endpoint: str
    incarnation: int
    pid: int
    model: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    projection: str
    block_size: int
    context_length: int
    cost: CostCurve | None

    @property
    def sink(self) -> Sink:
        return Sink(self.endpoint, self.incarnation)


class DraftOrder(NamedTuple):
    cursor: Cursor
    anchor: int
    law: Law
    max_slots: int


@dataclass(frozen=True, slots=True)
class Drafted:
    blocks: tuple[Block, ...]  # in the order asked; a malformed one is an empty one
    forward_s: float


@dataclass(frozen=True, slots=True)
class PrefillOrder:
    cursor: Cursor
    token_ids: tuple[int, ...]
    law: Law
    reserve_tokens: int
    sink: Sink | None
    keep_features: bool
    cache_salt: str = ""  # prefixes are shared among equals
    prompt_logprobs: int | None = None  # likeliest tokens told at every position; None tells nothing


@dataclass(frozen=True, slots=True)
class Prefilled:
    cursor: Cursor
    anchor: int
    forward_s: float
    logprobs: tuple[TokenLogprobs, ...] = ()  # of the anchor, where the law asks for them
    cached_tokens: int = 0  # leading tokens that needed no pass
    prompt_logprobs: PromptLogprobs | None = None  # where asked for


class VerifyOrder(NamedTuple):
    cursor: Cursor
    anchor: int
    draft_ids: tuple[int, ...]
    q: SparseQ
    sink: Sink | None
    drafter_version: str


@dataclass(frozen=True, slots=True)
class Judged:
    verdicts: tuple[Verdict | Declined, ...]  # in the order asked
    forward_s: float
    tokens: int  # in the packed pass
    prefill_tokens: int = 0  # of them those of prompts that rode along
    # [slots of all verdicts, 2] the chance to get to a slot and to keep it too; NaN where only outcomes are known
    labels: npt.NDArray[np.float32] | None = None
    draws: tuple[Draws, ...] = ()  # what the rule saw of the drafted tokens, by drafter version


class DrafterPort(Protocol):
    """One drafter process."""

    @property
    def facts(self) -> DrafterFacts: ...

    def open(self, cursor: Cursor, reserve_tokens: int, law: Law) -> Future[Declined | None]: ...

    def draft(self, orders: Sequence[DraftOrder], wait_us: int) -> Future[Drafted]: ...

    def release(self, cursor: Cursor) -> None: ...

    def close(self, why: str) -> None:
        """Lets the worker go: everything that was asked of it fails with `Lost`."""


class VerifierPort(Protocol):
    """One verifier process."""

    @property
    def facts(self) -> VerifierFacts: ...

    def prefill(self, order: PrefillOrder) -> Future[Prefilled | Declined]: ...

    def verify(self, orders: Sequence[VerifyOrder]) -> Future[Judged]: ...

    def resend(self, cursor: Cursor, sink: Sink, from_position: int) -> Future[Declined | None]: ...

    def release(self, cursor: Cursor) -> None: ...

    def close(self, why: str) -> None:
        """Lets the worker go: everything that was asked of it fails with `Lost`."""
