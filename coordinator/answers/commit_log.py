"""Which token stands at which position: the truth about an answer. Append-only.

Invariant 6, committed before shown: a token reaches a client only after it is in here, so a replay after any failure
neither repeats nor skips. Knows nothing of text.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dspark.rounds.bounds import kept


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
