"""What the services around a verify engine ask of it, and the nouns that pass through. No torch.

Two engines keep it: `engine.VerifyEngine`, which runs a target, and `synthetic.SyntheticVerifyEngine`, which sleeps.
Every method runs on the thread that owns the device; properties may be read from anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dspark.types import Cursor, Law, Refusal, TokenLogprobs, Verdict
from dspark.wire.v1 import types_pb2
from verify_service.config import VerifyConfig
from verify_service.sequences import VerifyItem


class FeatureRun(Protocol):
    """Feature rows of consecutive positions of one sequence, with the token at each."""

    @property
    def sequence(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def token_ids(self) -> Sequence[int]: ...

    def message(self, first: int, last: int) -> types_pb2.TensorChunk:
        """Rows first .. last - 1 as they travel."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcomes in the order of the items; features of the rows that were committed, for those that were judged."""

    outcomes: list[Verdict | Refusal]
    features: Sequence[FeatureRun | None]
    replayed: int  # outcomes that repeat an earlier verdict
    tokens: int  # tokens in the packed passes
    forward_ns: int
    near_ties: int = 0  # positions of coupled sequences that rounding could decide otherwise


@dataclass(frozen=True, slots=True)
class Held:
    """What the engine holds at this moment."""

    sequences: int
    pages_held: int
    pages_total: int


class TargetFacts(Protocol):
    """What is served."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    @property
    def stop_ids(self) -> Sequence[int]: ...


class ProjectionFacts(Protocol):
    """What feature rows are made with."""

    @property
    def fingerprint(self) -> str: ...


class Engine(Protocol):
    """One target, one pool of pages, the sequences that live in it."""

    @property
    def config(self) -> VerifyConfig: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def target(self) -> TargetFacts: ...

    @property
    def projection(self) -> ProjectionFacts | None: ...

    @property
    def feature_width(self) -> int: ...

    @property
    def attention_path(self) -> str: ...

    @property
    def device(self) -> object: ...

    @property
    def dtype(self) -> str: ...

    @property
    def held(self) -> Held: ...

    def open(
        self,
        cursor: Cursor,
        law: Law,
        reserve_tokens: int,
        keep_features: bool,
        *,
        owner: int = 0,
        token_ids: Sequence[int] | None = None,
    ) -> Refusal | None: ...

    def timed_chunk(
        self, sequence: int, token_ids: Sequence[int], epoch: int, wants_rows: bool
    ) -> tuple[FeatureRun | Refusal | None, int]: ...

    def first_token(self, sequence: int, *, epoch: int | None = None) -> int | Refusal: ...

    def anchor_logprobs(self, sequence: int) -> tuple[TokenLogprobs, ...]:
        """Of the token that `first_token` drew; empty when its law asks for none."""

    def judge_cohort(self, items: Sequence[VerifyItem]) -> Judged: ...

    def features(self, cursor: Cursor, start: int) -> FeatureRun | Refusal: ...

    def release(self, sequence: int, epoch: int) -> bool: ...

    def release_owner(self, owner: int) -> int: ...
