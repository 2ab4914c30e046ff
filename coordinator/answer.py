"""One sequence's answer: what of a verdict is committed, and what of it is shown.

Invariant 6, committed before shown: `take` appends to the log before it returns anything to show. Every way to end
by content is decided here, in one place: stop tokens, the length, stop strings. What a verdict holds behind the end was
never said: it is not committed, not shown and not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.commit_log import CommitLog, End, Reason, cut
from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import TextStream
from dspark.types import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Piece:
    """What one commit shows."""

    tokens: tuple[int, ...]
    text: str
    offset: int  # index in the answer of the first of `tokens`
    end: End | None
    index: int = 0  # which of a request's answers
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, where asked for


class Answer:
    """Grows by commits until something ends it."""

    def __init__(
        self,
        log: CommitLog,
        *,
        max_tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        text: TextStream | None = None,
        stops: Sequence[str] = (),
        show_stop: bool = False,
        min_tokens: int = 0,
        index: int = 0,
    ) -> None:
        self.log = log
        self.index = index
        self._max_tokens, self._min_tokens = max_tokens, min_tokens
        self._stop_ids = stop_ids
        self._text = text
        self._stops = StopStrings(stops, show_match=show_stop)
        self._show_stop = show_stop

    @property
    def room(self) -> int:
        """Tokens it may still grow by."""
        return self._max_tokens - self.log.answered

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> Piece:
        """Commits what belongs to the answer and says what to show; `logprobs` has one item per token, or none."""
        kept, end = cut(tokens, self.room, self._stop_ids)
        kept, end, text = self._read(kept, end)
        offset = self.log.answered
        self.log.append(kept)
        return Piece(kept, text, offset, end, self.index, tuple(logprobs[: len(kept)]))

    def _read(self, kept: tuple[int, ...], end: End | None) -> tuple[tuple[int, ...], End | None, str]:
        if self._text is None:
            return kept, end, ""
        shown: list[str] = []
        for index, token in enumerate(kept):
            last = index == len(kept) - 1
            if last and end is not None and end.reason is Reason.STOP and not self._show_stop:
                break  # a stop token ends the answer and is not part of its text
            # A stop string counts when the token that completes it may end the answer.
            may_end = self.log.answered + index >= self._min_tokens
            piece, matched = self._stops.push(self._text.push(token), may_end=may_end)
            shown.append(piece)
            if matched is not None:
                return kept[: index + 1], End(Reason.STOP, text=matched), "".join(shown)
        if end is not None:
            may_end = self.log.answered + len(kept) > self._min_tokens
            piece, matched = self._stops.push(self._text.flush(), may_end=may_end)
            shown.append(piece if matched else piece + self._stops.flush())
            if matched is not None and end.reason is Reason.LENGTH:
                end = End(Reason.STOP, text=matched)
        return kept, end, "".join(shown)

    def remainder(self) -> str:
        """Text still held back when something else than a commit ends the answer."""
        if self._text is None:
            return ""
        piece, matched = self._stops.push(self._text.flush(), may_end=self.log.answered > self._min_tokens)
        return piece if matched else piece + self._stops.flush()
