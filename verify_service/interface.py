"""What the services around a verify engine ask of it, and the nouns that pass through. No torch.

Two engines keep it: `engine.VerifyEngine`, which runs a target, and `synthetic.SyntheticVerifyEngine`, which sleeps.
Every method runs on the thread that owns the device, but for `Step.run`; properties may be read from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dspark.pages import Held
from dspark.rounds.events import OrderRow
from dspark.types import Constraint, Cursor, Draws, Refusal, SamplingParams, ScoredPrompt, ScoredToken, Verdict
from dspark.wire.orders import PackedRows
from dspark.wire.v1 import types_pb2
from verify_service.config import VerifyConfig
from verify_service.sequences import VerifyItem

if TYPE_CHECKING:
    from dspark.decoding.masking import Matcher


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
    tokens: int
    done: bool  # all of the prompt has run
    problem: Refusal | None = None  # set when it cannot go on


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcomes in the order of the items."""

    outcomes: list[Verdict | Refusal]
    tokens: int  # of the items, in the packed passes
    forward_ns: int
    prefill_tokens: int = 0  # of prompts that rode along; what came of them is `VerifyEnginePort.take_news`
    near_ties: int = 0  # positions of coupled sequences that rounding could decide otherwise
    # By sequence, [slots, 2] float32: the chance to get to each slot judged, and to keep it too; and what the rule
    # saw of the drafted tokens. See `dspark/decoding/draws.py`.
    labels: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    draws: Sequence[Draws] = ()


class Step(Protocol):
    """Passes between their preparation and their end, see `under_way`."""

    @property
    def failure(self) -> Exception | None:
        """Why nothing of it ran, once it is over."""

    def run(self) -> None:
        """On any thread, one step at a time and in the order of their preparation."""


class KeptRows(NamedTuple):
    """What travels with an order: feature rows, those of one sequence after those of the other, and masks."""

    counts: list[int]  # of each sequence; 0 where none are kept
    token_ids: list[int]  # at each position
    features: PackedRows | None  # None where there are none
    masks: Sequence[
        bytes
    ] = ()  # what the form of each answer lets come next, see `first_masked`; none has a form: none


class TooSlow(Exception):
    """Finding out what may come next takes longer than anybody waits for."""


class Grammar(Protocol):
    """A form of answers, compiled."""

    def matcher(self) -> Matcher:
        """At the beginning of an answer."""


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


class VerifyEnginePort(Protocol):
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
    def attention_reason(self) -> str: ...

    @property
    def device(self) -> object: ...

    @property
    def dtype(self) -> str: ...

    @property
    def held(self) -> Held: ...

    def open(
        self,
        cursor: Cursor,
        params: SamplingParams,
        reserve_tokens: int,
        keep_features: bool,
        *,
        owner: int = 0,
        token_ids: Sequence[int] | None = None,
        salt: str = "",
        scores: int | None = None,
    ) -> Refusal | None:
        """scores: likeliest tokens that `prompt_logprobs` is to tell at every position; None: it tells nothing."""

    def busy(self, sequence: int) -> bool:
        """Whether a pass that has not ended holds what has, or had, this number: it cannot be opened until then."""

    def spared(self, sequence: int, epoch: int) -> int:
        """Leading tokens of the prompt that need no pass."""

    def line_up(self, prefill: PromptPrefill) -> None:
        """The rest of an opened sequence's prompt will run, in rounds or between them."""

    def prefill_next(self, *, short: bool = False, owner: int = 0) -> Progress | None:
        """A chunk of the owner's first prompt in line, by itself; a short one when a round may come. None: there is
        none."""

    def take_news(self, owner: int = 0) -> Progress | None:
        """The oldest news of an owner's prompt that rode in a round, or whose pass failed, once. One thread of the
        owner's may ask.

        They are here and not with the verdicts: prompts are of other sessions, and outlive the round's.
        """

    def compile(self, constraint: Constraint, salt: str) -> Future[Grammar]:
        """Soon, and on another thread: the grammar, GrammarRefused or GrammarFailed.

        salt: it is given again among equals, as computed prefixes are. TENANT/WORD, or without a tenant any word.
        """

    def first_token(self, sequence: int, *, epoch: int | None = None, grammar: Grammar | None = None) -> int | Refusal:
        """grammar: of the form that is asked for."""

    def anchor_logprobs(self, sequence: int) -> tuple[ScoredToken, ...]:
        """Of the token that `first_token` drew; empty when none are asked for."""

    def prompt_logprobs(self, sequence: int) -> ScoredPrompt | None:
        """Of a prompt that has run, once; None when nobody asked for them."""

    def judge_cohort(self, items: Sequence[VerifyItem]) -> Judged: ...

    def begin(self, items: Sequence[VerifyItem]) -> Step:
        """`judge_cohort` in three parts: this one, `run`, and `end`, which has to follow."""

    def begin_prefill(self, *, short: bool = False, owner: int = 0) -> Step | None:
        """`prefill_next` in three parts; what it brings is news."""

    def end(self, step: Any) -> Judged:
        """What came of a step of this engine that has run, and is so from now on."""

    def grow(self, sequence: int, epoch: int, committed_len: int, slots: int) -> int | None:
        """Room for the anchor at committed_len - 1 and as many of `slots` more tokens as there are pages for: how many,
        None where there is none for the anchor, or no such sequence."""

    def features(self, cursor: Cursor, start: int) -> FeatureRun | Refusal: ...

    def kept_rows(self, asked: Sequence[OrderRow]) -> KeptRows:
        """What travels with an order: rows in one piece, and masks."""

    def release(self, sequence: int, epoch: int) -> bool: ...

    def release_owner(self, owner: int) -> int: ...
