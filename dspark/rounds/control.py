"""The messages between a coordinator and the rounds of one verifier, as plain types.

The coordinator sends sequences with all that an engine needs of them, drafters, plans,
acknowledgements and releases. The verifier sends reports of passes, sequences that are gone, and
the health of drafters. The loop itself uses the parts that are numbers (`events`, `plan`). Services
carry the messages over a stream, a simulator by calls.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dspark.rounds.events import (
    Acknowledged,
    Admit,
    DrafterEvent,
    KeepSequences,
    Release,
    Released,
    Report,
)
from dspark.rounds.plan import Plan
from dspark.types import Draws, SamplingParams, ScoredPrompt, ScoredToken


class Admission(NamedTuple):
    """A sequence for this verifier, new or moved from another one."""

    admit: Admit  # prompt_len is the number of token_ids
    token_ids: Sequence[int]  # the prompt, and the tokens of the answer committed before
    params: SamplingParams
    longest: int  # tokens it will reach at most, prompt included
    keep_rows: bool  # keep projected feature rows for drafters to come
    cache_salt: str = ""  # prefixes are shared among equals
    # number of likeliest tokens to report at every position; None: no report
    prompt_logprobs: int | None = None
    # its client can repeat its draws, so `PassReport.draws` leave them out
    repeatable: bool = False


class DrafterUse(enum.IntEnum):
    """What a verifier may do with a drafter."""

    YES = 0
    NO_NEW = 1  # it will leave: no sequence is opened there any more
    GONE = 2


class DrafterAt(NamedTuple):
    """A drafter, by the number that plans use for it. No other process ever gets that number."""

    drafter: int  # from 1 on
    endpoint: str
    incarnation: int
    use: DrafterUse = DrafterUse.YES


class PrefillStats(NamedTuple):
    """What a prefill reports beside its anchor."""

    cached_tokens: int = 0  # leading tokens that needed no pass
    prompt_logprobs: ScoredPrompt | None = None  # where asked for


class Timing(NamedTuple):
    """Times of one pass, in seconds by the verifier's clock."""

    forward_s: float = 0.0  # device time of the pass, rule included
    round_s: float = 0.0  # see `RoundSpans`
    draft_s: float = 0.0  # device time of the drafters' passes, the longest of them
    waited_s: float = 0.0  # from the first order of the cohort to its last block


class PassReport(NamedTuple):
    """All rounds of one pass, or one prefill (its pass is 0)."""

    report: Report
    timing: Timing = Timing()
    context: float = 0.0  # mean committed length
    tokens: int = 0  # in the packed pass, without those of prompts
    prefill_tokens: int = 0  # of prompts in the same pass
    started: PrefillStats | None = None  # for a prefill
    logprobs: Sequence[Sequence[ScoredToken]] = ()  # one per token of each round, where asked for
    # [verified slots of all rounds, 2] chance that a slot is reached, and that it is accepted too;
    # NaN where outcomes alone are known
    labels: npt.NDArray[np.float32] | None = None
    draws: tuple[Draws, ...] = ()  # what the rule saw of the drafted tokens, by drafter version
    pages_free: int = 0


class Draining(NamedTuple):
    """The verifier will leave, after `finish_within_s` seconds at most."""

    finish_within_s: float


Down = Admission | DrafterAt | Plan | Acknowledged | Release | KeepSequences
Up = PassReport | Released | DrafterEvent | Draining


class Listener(Protocol):
    """Receives a verifier's news, on the event loop, in the order in which things happened."""

    def heard(self, news: Sequence[Up]) -> None:
        """No news: a prompt got on, in passes of its own."""

    def lost(self, why: str) -> None:
        """Called once, when the verifier is lost: no news follow, and orders no longer arrive."""


class RoundsPort(Protocol):
    """The rounds of one verifier process. Never blocks."""

    def tell(self, orders: Sequence[Down]) -> None:
        """Sends orders, in this order and before all later ones. After `lost` they are dropped."""

    def listen(self, listener: Listener) -> None:
        """Sets the listener, before the first `tell`."""

    def close(self, why: str) -> None:
        """Ends the session: the verifier frees all its sequences, and the listener gets `lost`."""
