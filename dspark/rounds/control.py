"""What a coordinator and the rounds of one verifier tell each other, in plain nouns.

Down go sequences with all that an engine needs of them, the drafters that may be asked, plans,
acknowledgements and releases; up come reports of passes, sequences that are gone, and how drafters
are found. The loop itself sees the parts of this that are numbers (`events`, `plan`). Services
carry it over a stream, a simulator by a call.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dspark.rounds.events import Acknowledged, Admit, DrafterEvent, Keep, Release, Released, Report
from dspark.rounds.plan import Plan
from dspark.types import Draws, RefusalReason, SamplingParams, ScoredPrompt, ScoredToken


class Admission(NamedTuple):
    """A sequence, new or moved here from elsewhere."""

    admit: Admit  # prompt_len is the number of token_ids
    token_ids: Sequence[int]  # the prompt, and whatever of the answer was committed before
    params: SamplingParams
    longest: int  # tokens it will reach at most, prompt included
    keep_rows: bool  # keep projected feature rows for drafters to come
    cache_salt: str = ""  # prefixes are shared among equals
    # likeliest tokens told at every position; None tells nothing
    prompt_logprobs: int | None = None
    # its client can have the same draws again: `PassReport.draws` leave them out
    repeatable: bool = False


class Use(enum.IntEnum):
    """What a verifier may do with a drafter."""

    YES = 0
    NO_NEW = 1  # it will leave: nobody is opened there any more
    GONE = 2


class DrafterAt(NamedTuple):
    """A drafter by the number that plans name it by. A number is never given to another process."""

    drafter: int  # from 1 on
    endpoint: str
    incarnation: int
    use: Use = Use.YES


class Started(NamedTuple):
    """What is told of a prefill, beside its anchor."""

    forward_s: float = 0.0  # from taking it in to the end of its last chunk
    cached_tokens: int = 0  # leading tokens that needed no pass
    prompt_logprobs: ScoredPrompt | None = None  # where asked for


class Timing(NamedTuple):
    """Of one pass, in seconds by the verifier's clock."""

    forward_s: float = 0.0  # device time of the pass, rule included
    round_s: float = 0.0  # see `RoundSpans`
    draft_s: float = 0.0  # device time of the drafters' passes, the longest of them
    waited_s: float = 0.0  # from the first order of the cohort to its last block


class PassReport(NamedTuple):
    """All rounds of one pass, or one prefill (its pass is 0)."""

    report: Report
    timing: Timing = Timing()
    context: float = 0.0  # mean committed length
    tokens: int = 0  # in the packed pass
    prefill_tokens: int = 0  # of them those of prompts that rode along
    started: Started | None = None  # of a prefill
    logprobs: Sequence[Sequence[ScoredToken]] = ()  # one per token of each round, where asked for
    # [verified slots of all rounds, 2] chance to get to a slot, and to keep it too; NaN where
    # outcomes alone are known
    labels: npt.NDArray[np.float32] | None = None
    draws: tuple[Draws, ...] = ()  # what the rule saw of the drafted tokens, by drafter version
    pages_free: int = 0


class Refused(NamedTuple):
    """Why a sequence is gone, in words. Its `Released` follows."""

    sequence: int
    epoch: int
    why: RefusalReason
    message: str = ""


class Draining(NamedTuple):
    """The verifier will leave."""

    finish_within_s: float


Down = Admission | DrafterAt | Plan | Acknowledged | Release | Keep
Up = PassReport | Released | Refused | DrafterEvent | Draining


class Listener(Protocol):
    """Whoever hears a verifier; called on the event loop, in the order in which things happened."""

    def heard(self, news: Sequence[Up]) -> None: ...

    def lost(self, why: str) -> None:
        """Nothing more will come, and nothing that is told arrives. Once."""


class RoundsPort(Protocol):
    """The rounds of one verifier process. Never blocks."""

    def tell(self, orders: Sequence[Down]) -> None:
        """In this order, before anything that is told later. After `lost` it goes nowhere."""

    def listen(self, listener: Listener) -> None:
        """Before anything is told."""

    def close(self, why: str) -> None:
        """Lets the verifier go; all its sequences are freed there. The listener is told `lost`."""
