"""One sequence's answer: what of a verdict is committed, and what of it is passed on to whoever reads.

Invariant 6, committed before shown: `take` appends to the log before it returns anything to show. Every way to end
that tokens tell is decided here, in one place: stop tokens and the length. What a verdict holds behind the end was
never said: it is not committed, not shown and not counted. Knows nothing of text, see `reading`.

The commit log says which token stands at which position: append-only, and the truth about an answer.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dspark.rounds.bounds import kept
from dspark.types import ScoredPrompt, ScoredToken


class Reason(enum.Enum):
    """How an answer ends in good order."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class End:
    """Why the answer is over, and what matched."""

    reason: Reason
    token_id: int | None = None
    text: str | None = None


class CommitLog:
    """Prompt and answer, position by position."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = list(prompt)
        self.prompt_len = len(self._ids)

    def __len__(self) -> int:
        """`committed_len` of the cursor: prompt and committed tokens, the anchor included."""
        return len(self._ids)

    @property
    def anchor(self) -> int:
        """The newest committed token."""
        return self._ids[-1]

    @property
    def answered(self) -> int:
        """Tokens of the answer."""
        return len(self._ids) - self.prompt_len

    def ids(self) -> tuple[int, ...]:
        """Prompt and answer: what another verifier has to take in."""
        return tuple(self._ids)

    def answer(self) -> tuple[int, ...]:
        return tuple(self._ids[self.prompt_len :])

    def append(self, tokens: Sequence[int]) -> None:
        self._ids.extend(tokens)


def cut(tokens: Sequence[int], room: int, stop_ids: frozenset[int]) -> tuple[tuple[int, ...], End | None]:
    """The leading tokens an answer with `room` tokens left may commit, and its end if they end it."""
    count, ended = kept(tokens, room, stop_ids)
    said = tuple(tokens[:count])
    if not ended:
        return said, None
    if said and said[-1] in stop_ids:
        return said, End(Reason.STOP, token_id=said[-1])
    return said, End(Reason.LENGTH)


class Round(NamedTuple):
    """The verification behind a commit, in tokens."""

    drafted: int
    verified: int
    accepted: int  # before stop tokens and limits cut the answer


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """How an answer's first commit came about."""

    queue_s: float  # arrival to prefill
    cached_tokens: int = 0  # prompt tokens whose prefill was spared
    prompt_logprobs: ScoredPrompt | None = None  # with answer 0, where asked for


@dataclass(frozen=True, slots=True)
class CommittedTokens:
    """What one commit passes on. Pieces follow each other without gaps, so nothing says where one stands."""

    tokens: tuple[int, ...]
    end: End | None
    index: int = 0  # which of a request's answers
    logprobs: tuple[ScoredToken, ...] = ()  # one per token, where asked for
    round: Round | None = None  # None after a prefill
    started: FirstCommit | None = None  # with an answer's first commit

    def part(self, start: int, stop: int | None) -> CommittedTokens:
        """Some of its tokens; the end stays with the last of them."""
        last = stop is None
        return replace(
            self,
            tokens=self.tokens[start:stop],
            logprobs=self.logprobs[start:stop],
            end=self.end if last else None,
            round=self.round if last else None,
        )


class Answer:
    """Grows by commits until something ends it."""

    def __init__(
        self, log: CommitLog, *, max_tokens: int, stop_ids: frozenset[int] = frozenset(), index: int = 0
    ) -> None:
        self.log = log
        self.index = index
        self.room = max_tokens - log.answered  # tokens it may still grow by; rounds ask for it again and again
        self._stop_ids = stop_ids

    def take(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[ScoredToken] = (),
        *,
        round: Round | None = None,
        started: FirstCommit | None = None,
    ) -> CommittedTokens:
        """Commits what belongs to the answer; `logprobs` has one item per token, or none."""
        kept, end = cut(tokens, self.room, self._stop_ids)
        self.log.append(kept)
        self.room -= len(kept)
        return CommittedTokens(kept, end, self.index, tuple(logprobs[: len(kept)]) if logprobs else (), round, started)

    def stopped(self, end: End) -> CommittedTokens:
        """Something else than a commit ends it."""
        return CommittedTokens((), end, self.index)
