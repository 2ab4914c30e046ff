"""The answer of one sequence: which tokens of a verdict are committed and passed on to the reader.

Invariant 6, committed before shown: `take` commits before it returns anything to show.
Both ends that depend on tokens, stop tokens and length, are decided here. Tokens of a verdict after
the end are not committed, shown or counted. Text is no concern of this module, see
`reception/output_processor.py`.

An answer holds the commit log, the token at each position: append-only, and the truth about it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import NamedTuple

from dspark.rounds.bounds import kept
from dspark.types import ScoredPrompt, ScoredToken


class Reason(enum.Enum):
    """How an answer ends without an error."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class End:
    """Why an answer ended, and which stop token or stop string matched."""

    reason: Reason
    token_id: int | None = None
    text: str | None = None


def cut(
    tokens: Sequence[int], room: int, stop_ids: frozenset[int]
) -> tuple[tuple[int, ...], End | None]:
    """(the leading tokens that an answer with `room` tokens left may commit, its end or None)."""
    count, ended = kept(tokens, room, stop_ids)
    said = tuple(tokens[:count])
    if not ended:
        return said, None
    if said and said[-1] in stop_ids:
        return said, End(Reason.STOP, token_id=said[-1])
    return said, End(Reason.LENGTH)


class Round(NamedTuple):
    """The round that made a commit: numbers of tokens drafted, verified and accepted."""

    drafted: int
    verified: int
    accepted: int  # before stop tokens and limits cut the answer


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """What is known with an answer's first commit: its wait, cached tokens, scored prompt."""

    queue_s: float  # arrival to prefill
    cached_tokens: int = 0  # prompt tokens that needed no prefill
    prompt_logprobs: ScoredPrompt | None = None  # with answer 0, if requested


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """The piece of an answer that one commit adds. Pieces follow without gaps, so they carry no
    position."""

    tokens: tuple[int, ...]
    end: End | None
    index: int = 0  # which of a request's answers
    logprobs: tuple[ScoredToken, ...] = ()  # one per token, if requested
    round: Round | None = None  # None after a prefill
    started: FirstCommit | None = None  # with an answer's first commit

    def part(self, start: int, stop: int | None) -> CommittedTokens:
        """The piece of tokens `start` to `stop`; keeps end and round only where `stop` is None."""
        last = stop is None
        return replace(
            self,
            tokens=self.tokens[start:stop],
            logprobs=self.logprobs[start:stop],
            end=self.end if last else None,
            round=self.round if last else None,
        )


class Answer:
    """An answer that grows by commits until it ends, with the prompt before it."""

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        resumed: Sequence[int] = (),
        max_tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        index: int = 0,
    ) -> None:
        """resumed: tokens of it that were committed before it was resumed."""
        self._ids = [*prompt, *resumed]
        self.prompt_len, self._resumed = len(prompt), len(resumed)
        self.index = index
        # tokens it may still grow by; stored, because every round reads it
        self.room = max_tokens - len(resumed)
        self._stop_ids = stop_ids

    @property
    def committed_len(self) -> int:
        """As in cursors: the prompt and the committed tokens, the anchor included."""
        return len(self._ids)

    @property
    def length(self) -> int:
        """Number of its tokens, without those of the prompt."""
        return len(self._ids) - self.prompt_len

    @property
    def since_resumed(self) -> int:
        """Number of its tokens since it was resumed, for statistics and shares."""
        return self.length - self._resumed

    def ids(self) -> tuple[int, ...]:
        """Ids of prompt and answer: what another verifier must prefill."""
        return tuple(self._ids)

    def take(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[ScoredToken] = (),
        *,
        round: Round | None = None,
        started: FirstCommit | None = None,
    ) -> CommittedTokens:
        """Commits the tokens that belong to the answer and returns them as a piece. `logprobs` has
        one item per token, or none."""
        kept, end = cut(tokens, self.room, self._stop_ids)
        self._ids.extend(kept)
        self.room -= len(kept)
        return CommittedTokens(
            kept, end, self.index, tuple(logprobs[: len(kept)]) if logprobs else (), round, started
        )

    def stopped(self, end: End) -> CommittedTokens:
        """The piece that ends the answer without a commit."""
        return CommittedTokens((), end, self.index)


@dataclass(slots=True)
class RequestStats:
    """Statistics and clock times of one answer, for its last message.

    Invariant: the acceptance histogram sums to `rounds`, and weighted by its index to `accepted`.
    """

    arrived: float
    placed: float | None = None  # start of the first prefill
    first: float | None = None  # first token committed
    ended: float | None = None
    drafted: int = 0
    verified_histogram: list[int] = field(default_factory=list)
    acceptance_histogram: list[int] = field(default_factory=list)
    committed_by_rounds: int = 0
    shown: float | None = None  # newest commit

    @staticmethod
    def together(stats: Sequence[RequestStats]) -> RequestStats:
        """Statistics of several answers as one: sums of counts, the first starts, the last end."""
        return RequestStats(
            min(one.arrived for one in stats),
            min((one.placed for one in stats if one.placed is not None), default=None),
            min((one.first for one in stats if one.first is not None), default=None),
            max((one.ended for one in stats if one.ended is not None), default=None),
            sum(one.drafted for one in stats),
            _sums(one.verified_histogram for one in stats),
            _sums(one.acceptance_histogram for one in stats),
            sum(one.committed_by_rounds for one in stats),
        )

    def round(self, round: Round, committed: int) -> int:
        """Counts a round of which so many tokens were committed; returns how many of these were
        drafted."""
        accepted = min(round.accepted, committed)
        self.drafted += round.drafted
        _count(self.verified_histogram, round.verified)
        _count(self.acceptance_histogram, accepted)
        self.committed_by_rounds += committed
        return accepted

    @property
    def rounds(self) -> int:
        return sum(self.acceptance_histogram)

    @property
    def verified(self) -> int:
        return sum(index * count for index, count in enumerate(self.verified_histogram))

    @property
    def accepted(self) -> int:
        return sum(index * count for index, count in enumerate(self.acceptance_histogram))

    @property
    def mean_acceptance_length(self) -> float:
        """tau: tokens committed per round, the target's own included."""
        return self.committed_by_rounds / self.rounds if self.rounds else 0.0

    def queue_s(self) -> float:
        return (self.placed if self.placed is not None else self._end()) - self.arrived

    def first_token_s(self) -> float:
        return (self.first if self.first is not None else self._end()) - self.arrived

    def per_token_s(self, tokens: int) -> float:
        """Mean seconds per token after the first, of at least two."""
        return (self.total_s() - self.first_token_s()) / (tokens - 1)

    def total_s(self) -> float:
        return self._end() - self.arrived

    def _end(self) -> float:
        return self.ended if self.ended is not None else self.arrived


def _sums(histograms: Iterable[list[int]]) -> list[int]:
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def _count(histogram: list[int], index: int) -> None:
    histogram += [0] * (index + 1 - len(histogram))
    histogram[index] += 1
