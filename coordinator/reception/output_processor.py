"""What clients are shown of what was committed: text, stop strings, and the numbers of the last
message. Pure.

The front end's half of an answer; `answers/answer.py` is the lane's. A stop string ends the answer
with the token that completes it: tokens behind it may have been committed by then, and are neither
shown nor counted. Every number is derived from the pieces themselves, so it does not matter where
they were committed.

Text that may yet turn out to begin a stop string is held back: never more than the longest one less
a character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.answers.answer import CommittedTokens, End, Reason, RequestStats
from coordinator.reception.tokenizer import TextStream, Tokenizer
from coordinator.requests.request import Request
from dspark.types import ScoredPrompt, ScoredToken


class StopStrings:
    """Decides what may be shown."""

    def __init__(self, stops: Sequence[str], *, show_match: bool = False) -> None:
        self._stops = tuple(stops)
        self._show_match = show_match
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> tuple[str, str | None]:
        """(text that may be shown, the stop string that ends the answer).

        The earliest match that this text completes counts, and none where the answer may not end
        yet.
        """
        if not self._stops:
            return text, None
        old = len(self._held)
        text = self._held + text
        found = [
            (at, order)
            for order, stop in enumerate(self._stops)
            if may_end and (at := text.find(stop, max(old - len(stop) + 1, 0))) >= 0
        ]
        if found:
            at, order = min(found)
            stop = self._stops[order]
            self._held = ""
            return text[: at + len(stop)] if self._show_match else text[:at], stop
        hold = max(overlap(text, stop) for stop in self._stops)
        shown, self._held = text[: len(text) - hold], text[len(text) - hold :]
        return shown, None

    def flush(self) -> str:
        """What was held back; the answer is over and it was no stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that begins `mark` and is not all of it."""
    return next(
        (
            size
            for size in range(min(len(mark) - 1, len(text)), 0, -1)
            if text.endswith(mark[:size])
        ),
        0,
    )


@dataclass(slots=True)
class OutputChunk:
    """What one message shows of one answer."""

    index: int
    offset: int  # index in the answer of the first of `tokens`
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # of each token whose text is shown
    logprobs: list[ScoredToken] = field(default_factory=list)
    ended: bool = False  # it is the answer's last

    @property
    def says(self) -> bool:
        """Whether it shows anything."""
        return bool(self.tokens or self.text)

    @property
    def text(self) -> str:
        return "".join(self.texts)


class AnswerOutput:
    """One answer as its pieces come in."""

    def __init__(
        self,
        request: Request,
        index: int,
        tokenizer: Tokenizer | None,
        arrived: float,
        held: int = 0,
    ) -> None:
        self.index = index
        self.held = held  # leading tokens that the client has: read, and not shown again
        self.answered = 0  # tokens shown
        self.unsaid = 0  # tokens that came behind a stop string
        self.end: End | None = None
        self.cached_tokens = 0
        self.prompt_logprobs: ScoredPrompt | None = None
        self.stats = RequestStats(arrived)
        # (drafted tokens verified, of these shown) of each round
        self.steps: list[tuple[int, int]] | None = None
        self._text: TextStream | None = None
        if tokenizer is not None:
            self._text = tokenizer.stream(request.prompt, skip_special=request.skip_special)
        self._stops = StopStrings(request.stops, show_match=request.show_stop)
        self._show_stop, self._min_tokens = request.show_stop, request.params.min_tokens

    def read(self, piece: CommittedTokens, at: float, shown: OutputChunk) -> bool:
        """Adds a piece that came at clock time `at` to what is shown; returns whether it ended the
        answer."""
        if self.end is not None:
            self.unsaid += len(piece.tokens)
            return False
        had = min(max(self.held - self.answered, 0), len(piece.tokens))
        if 0 < had < len(piece.tokens):
            # text is made token by token, so it can be parted where the tokens are
            ended = self.read(piece.part(0, had), at, OutputChunk(self.index, 0))
            return self.read(piece.part(had, None), at, shown) or ended
        kept, end, texts = self._read(piece.tokens, piece.end)
        self.answered += len(kept)
        self.unsaid += len(piece.tokens) - len(kept)
        if not had:
            shown.tokens += kept
            shown.texts += texts
            shown.logprobs += piece.logprobs[: len(kept)]
        self._count(piece, len(kept), at)
        if end is None:
            return False
        self.end, self.stats.ended = end, at
        return True

    def _read(
        self, tokens: tuple[int, ...], end: End | None
    ) -> tuple[tuple[int, ...], End | None, list[str]]:
        """(tokens that belong to the answer, its end, texts to show; what was held back is the last
        one's)."""
        if self._text is None:
            return tokens, end, []
        shown: list[str] = []
        for index, token in enumerate(tokens):
            last = index == len(tokens) - 1
            # A stop token ends the answer and is not part of its text. An end without one is that
            # of a stop string, noted before and told again: its last token completes the string.
            if last and end is not None and end.token_id is not None and not self._show_stop:
                break
            # A stop string counts when the token that completes it may end the answer.
            may_end = self.answered + index >= self._min_tokens
            piece, matched = self._stops.push(self._text.push(token), may_end=may_end)
            shown.append(piece)
            if matched is not None:
                return tokens[: index + 1], End(Reason.STOP, text=matched), shown
        if end is not None:
            may_end = self.answered + len(tokens) > self._min_tokens
            piece, matched = self._stops.push(self._text.flush(), may_end=may_end)
            piece = piece if matched else piece + self._stops.flush()
            shown[-1:] = ["".join([*shown[-1:], piece])]
            if matched is not None and end.reason is Reason.LENGTH:
                end = End(Reason.STOP, text=matched)
        return tokens, end, shown

    def _count(self, piece: CommittedTokens, kept: int, at: float) -> None:
        stats = self.stats
        if piece.started is not None:
            stats.placed = stats.arrived + piece.started.queue_s
            self.cached_tokens = piece.started.cached_tokens
            self.prompt_logprobs = piece.started.prompt_logprobs
        if kept and stats.first is None:
            stats.first = at
        if piece.round is not None:
            stats.drafted += piece.round.drafted
            verified, accepted = piece.round.verified, min(piece.round.accepted, kept)
            stats.round(verified=verified, accepted=accepted, committed=kept)
            if self.steps is not None and kept:
                self.steps.append((verified, accepted))


class OutputProcessor:
    """All answers of one request; `held`: tokens of each that its client has, when it resumes
    them."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        arrived: float,
        held: Sequence[int] = (),
    ) -> None:
        self.request = request
        self._open = request.choices
        had = held or (0,) * request.choices
        self.answers = [
            AnswerOutput(request, index, tokenizer, arrived, had[index])
            for index in range(request.choices)
        ]

    @property
    def done(self) -> bool:
        return not self._open

    @property
    def prompt_logprobs(self) -> ScoredPrompt | None:
        """Where asked for, as soon as answer 0 has begun."""
        return self.answers[0].prompt_logprobs

    @property
    def unsaid(self) -> int:
        """Tokens that came behind stop strings."""
        return sum(answer.unsaid for answer in self.answers)

    def read(
        self, waiting: Iterable[tuple[CommittedTokens, float]], finish: Callable[[int], None]
    ) -> list[OutputChunk]:
        """What to show of pieces and the clock times they came at: one item per answer, whatever
        was waiting.

        `finish(index)` is called when its text ends an answer.
        """
        shown: dict[int, OutputChunk] = {}
        for piece, at in waiting:
            answer = self.answers[piece.index]
            if piece.index not in shown:
                shown[piece.index] = OutputChunk(piece.index, max(answer.answered, answer.held))
            if answer.read(piece, at, shown[piece.index]):
                self._open -= 1
                shown[piece.index].ended = True
                if answer.end is not None and answer.end.text is not None:
                    finish(piece.index)
        return [one for one in shown.values() if one.says or one.ended]


def per_token_s(answers: Iterable[AnswerOutput]) -> float:
    """Mean time per token after the first of each answer."""
    told = [(answer.stats.per_token_s(answer.answered), answer.answered - 1) for answer in answers]
    tokens = sum(count for _, count in told if count > 0)
    return sum(each * count for each, count in told if count > 0) / tokens if tokens else 0.0
