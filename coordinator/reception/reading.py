"""What clients are shown of what was committed: text, stop strings, and the numbers of the last message. Pure.

The front end's half of an answer; `answer` is the lane's. A stop string ends the answer with the token that completes
it: tokens behind it may have been committed by then, and are neither shown nor counted. Every number is derived from
the pieces themselves, so it does not matter where they were committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.answers.answer import Piece
from coordinator.answers.commit_log import End, Reason
from coordinator.answers.stop_strings import StopStrings
from coordinator.answers.tally import Tally
from coordinator.reception.tokenizer import TextStream
from coordinator.requests.request import Request
from dspark.types import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class Shown:
    """What one message shows of one answer."""

    index: int
    offset: int  # index in the answer of the first of `tokens`
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Reading:
    """One answer as its pieces come in."""

    def __init__(self, request: Request, index: int, text: TextStream | None, arrived: float, held: int = 0) -> None:
        self.index = index
        self.held = held  # leading tokens that the client has: read, and not shown again
        self.answered = 0  # tokens shown
        self.unsaid = 0  # tokens that came behind a stop string
        self.end: End | None = None
        self.cached_tokens = 0
        self.prompt_logprobs: PromptLogprobs | None = None
        self.tally = Tally(arrived)
        self._text = text
        self._stops = StopStrings(request.stops, show_match=request.show_stop)
        self._show_stop, self._min_tokens = request.show_stop, request.law.min_tokens

    def read(self, piece: Piece, at: float, shown: Shown) -> bool:
        """Adds a piece that came at clock time `at` to what is shown; returns whether it ended the answer."""
        if self.end is not None:
            self.unsaid += len(piece.tokens)
            return False
        had = min(max(self.held - self.answered, 0), len(piece.tokens))
        if 0 < had < len(piece.tokens):  # text is made token by token, so it can be parted where the tokens are
            ended = self.read(piece.part(0, had), at, Shown(self.index, 0))
            return self.read(piece.part(had, None), at, shown) or ended
        kept, end, text = self._read(piece.tokens, piece.end)
        self.answered += len(kept)
        self.unsaid += len(piece.tokens) - len(kept)
        if not had:
            shown.tokens += kept
            shown.text += text
            shown.logprobs += piece.logprobs[: len(kept)]
        self._count(piece, len(kept), at)
        if end is None:
            return False
        self.end, self.tally.ended = end, at
        return True

    def _read(self, tokens: tuple[int, ...], end: End | None) -> tuple[tuple[int, ...], End | None, str]:
        """(tokens that belong to the answer, its end, text to show)."""
        if self._text is None:
            return tokens, end, ""
        shown: list[str] = []
        for index, token in enumerate(tokens):
            last = index == len(tokens) - 1
            # A stop token ends the answer and is not part of its text. An end without one is that of a stop string,
            # noted before and told again: its last token completes the string.
            if last and end is not None and end.token_id is not None and not self._show_stop:
                break
            # A stop string counts when the token that completes it may end the answer.
            may_end = self.answered + index >= self._min_tokens
            piece, matched = self._stops.push(self._text.push(token), may_end=may_end)
            shown.append(piece)
            if matched is not None:
                return tokens[: index + 1], End(Reason.STOP, text=matched), "".join(shown)
        if end is not None:
            may_end = self.answered + len(tokens) > self._min_tokens
            piece, matched = self._stops.push(self._text.flush(), may_end=may_end)
            shown.append(piece if matched else piece + self._stops.flush())
            if matched is not None and end.reason is Reason.LENGTH:
                end = End(Reason.STOP, text=matched)
        return tokens, end, "".join(shown)

    def _count(self, piece: Piece, kept: int, at: float) -> None:
        tally = self.tally
        if piece.started is not None:
            tally.placed = tally.arrived + piece.started.queue_s
            self.cached_tokens = piece.started.cached_tokens
            self.prompt_logprobs = piece.started.prompt_logprobs
        if kept and tally.first is None:
            tally.first = at
        if piece.round is not None:
            tally.drafted += piece.round.drafted
            tally.round(verified=piece.round.verified, accepted=min(piece.round.accepted, kept), committed=kept)


class Reader:
    """All answers of one request; `held`: tokens of each that its client has, when it resumes them."""

    def __init__(
        self, request: Request, make_text: Callable[[], TextStream | None], arrived: float, held: Sequence[int] = ()
    ) -> None:
        self.request = request
        self._open = request.choices
        had = held or (0,) * request.choices
        self.readings = [Reading(request, index, make_text(), arrived, had[index]) for index in range(request.choices)]

    @property
    def done(self) -> bool:
        return not self._open

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Where asked for, as soon as answer 0 has begun."""
        return self.readings[0].prompt_logprobs

    @property
    def unsaid(self) -> int:
        """Tokens that came behind stop strings."""
        return sum(reading.unsaid for reading in self.readings)

    def read(self, waiting: Iterable[tuple[Piece, float]], finish: Callable[[int], None]) -> list[Shown]:
        """What to show of pieces and the clock times they came at: one item per answer, whatever was waiting.

        `finish(index)` is called when its text ends an answer.
        """
        shown: dict[int, Shown] = {}
        for piece, at in waiting:
            reading = self.readings[piece.index]
            if piece.index not in shown:
                shown[piece.index] = Shown(piece.index, max(reading.answered, reading.held))
            if reading.read(piece, at, shown[piece.index]):
                self._open -= 1
                if reading.end is not None and reading.end.text is not None:
                    finish(piece.index)
        return [one for one in shown.values() if one.tokens or one.text]
