"""One sequence's answer: what of a verdict is committed, and what of it is passed on to whoever reads.

Invariant 6, committed before shown: `take` appends to the log before it returns anything to show. Every way to end
that tokens tell is decided here, in one place: stop tokens and the length. What a verdict holds behind the end was
never said: it is not committed, not shown and not counted. Knows nothing of text, see `reading`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from coordinator.answers.commit_log import CommitLog, End, cut
from dspark.types import PromptLogprobs, TokenLogprobs


class Round(NamedTuple):
    """The verification behind a commit, in tokens."""

    drafted: int
    verified: int
    accepted: int  # before stop tokens and limits cut the answer


@dataclass(frozen=True, slots=True)
class Started:
    """How an answer's first commit came about."""

    queue_s: float  # arrival to prefill
    cached_tokens: int = 0  # prompt tokens whose prefill was spared
    prompt_logprobs: PromptLogprobs | None = None  # with answer 0, where asked for


@dataclass(frozen=True, slots=True)
class Piece:
    """What one commit passes on. Pieces follow each other without gaps, so nothing says where one stands."""

    tokens: tuple[int, ...]
    end: End | None
    index: int = 0  # which of a request's answers
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, where asked for
    round: Round | None = None  # None after a prefill
    started: Started | None = None  # with an answer's first commit

    def part(self, start: int, stop: int | None) -> Piece:
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
        logprobs: Sequence[TokenLogprobs] = (),
        *,
        round: Round | None = None,
        started: Started | None = None,
    ) -> Piece:
        """Commits what belongs to the answer; `logprobs` has one item per token, or none."""
        kept, end = cut(tokens, self.room, self._stop_ids)
        self.log.append(kept)
        self.room -= len(kept)
        return Piece(kept, end, self.index, tuple(logprobs[: len(kept)]) if logprobs else (), round, started)

    def stopped(self, end: End) -> Piece:
        """Something else than a commit ends it."""
        return Piece((), end, self.index)
