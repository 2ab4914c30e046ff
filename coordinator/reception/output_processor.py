"""Turns committed tokens into what a client is shown: text, stop strings, and the statistics of the
last message. Pure.

This is the front end's part of an answer; `answers/answer.py` is the lane's. A stop string ends the
answer with the token that completes it: tokens after it may already be committed, and are neither
shown nor counted. All statistics come from the pieces, so it does not matter where they were
committed.

Text that may be the beginning of a stop string is held back: at most the longest one less a
character.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coordinator.answers.answer import CommittedTokens, End, Reason, RequestStats
from coordinator.reception.tokenizer import TextStream, Tokenizer
from coordinator.requests.request import Request
from dspark.types import ScoredPrompt, ScoredToken


class StopStrings:
    """Finds stop strings in a text that arrives in pieces, and decides what may be shown."""

    def __init__(self, stops: Sequence[str], *, show_match: bool = False) -> None:
        self._stops = tuple(stops)
        self._show_match = show_match
        self._held = ""

    def push(self, text: str, *, may_end: bool = True) -> tuple[str, str | None]:
        """Adds text; returns (text to show, the stop string that ends the answer or None).

        Of several matches that this text completes the earliest counts. There is no match while
        `may_end` is False.
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
        """Returns the text held back, at the end of an answer without a stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a proper prefix of `mark`."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


@dataclass(slots=True)
class OutputChunk:
    """New tokens and text of one answer for one message."""

    index: int
    offset: int  # index in the answer of the first of `tokens`
    tokens: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # of each token, if there is a tokenizer
    rest: str = ""  # text of earlier tokens, where the answer ends without a new one
    logprobs: list[ScoredToken] = field(default_factory=list)
    end: End | None = None  # of the answer, with its last chunk

    @property
    def says(self) -> bool:
        """Whether it has tokens or text to show."""
        return bool(self.tokens or self.text)

    @property
    def text(self) -> str:
        return "".join(self.texts) + self.rest


class AnswerOutput:
    """What was shown of one answer so far, and its end and statistics."""

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
        self.answered = 0  # tokens of the answer so far, those held included
        self.again = 0  # of them, those from before a resume, which took no time
        self.unsaid = 0  # tokens committed after a stop string
        self.end: End | None = None
        self.cached_tokens = 0
        self.prompt_logprobs: ScoredPrompt | None = None
        self.stats = RequestStats(arrived)
        # (drafted tokens verified, of these shown) of each round
        self.steps: list[tuple[int, int]] | None = None
        self._text: TextStream | None = None
        if tokenizer is not None:
            self._text = tokenizer.stream(request.prompt, skip_special=request.skip_special)
        # stop strings that are special tokens, by id: these are left out of the text
        self._unseen: dict[int, str] = {}
        if tokenizer is not None and request.stops and request.skip_special:
            special = tokenizer.special_ids
            self._unseen = {special[stop]: stop for stop in request.stops if stop in special}
        self._stops = StopStrings(request.stops, show_match=request.show_stop)
        self._show_stop, self._min_tokens = request.show_stop, request.params.min_tokens

    def read(self, piece: CommittedTokens, at: float, shown: OutputChunk) -> None:
        """Adds a piece, received at clock time `at`, to the chunk `shown`."""
        if self.end is not None:
            self.unsaid += len(piece.tokens)
            return
        had = min(max(self.held - self.answered, 0), len(piece.tokens))
        if 0 < had < len(piece.tokens):
            # text is made token by token, so the piece can be split between tokens
            held = OutputChunk(self.index, 0)
            self.read(piece.part(0, had), at, held)
            shown.end = held.end
            return self.read(piece.part(had, None), at, shown)
        kept, end, texts, rest = self._read(piece.tokens, piece.end)
        self.answered += len(kept)
        self.unsaid += len(piece.tokens) - len(kept)
        if not had:
            shown.tokens += kept
            shown.texts += texts
            shown.rest = rest
            shown.logprobs += piece.logprobs[: len(kept)]
        self._count(piece, len(kept), at)
        if end is not None:
            self.end, shown.end, self.stats.ended = end, end, at

    def _read(
        self, tokens: tuple[int, ...], end: End | None
    ) -> tuple[tuple[int, ...], End | None, list[str], str]:
        """(tokens that belong to the answer, its end, their texts to show, the text held back until
        the end if there is no token to show it with)."""
        if self._text is None:
            return tokens, end, [], ""
        shown: list[str] = []
        unseen = rest = ""
        for index, token in enumerate(tokens):
            shown.append("")
            last = index == len(tokens) - 1
            # A stop token ends the answer and is not part of its text. A stop without a token is
            # that of a stop string, from the journal: the last token completes the string.
            if last and end is not None and end.token_id is not None and not self._show_stop:
                break
            # A stop string counts when the token that completes it may end the answer.
            may_end = self.answered + index >= self._min_tokens
            if may_end and token in self._unseen:
                unseen = self._unseen[token]
                tokens, end = tokens[: index + 1], End(Reason.STOP, text=unseen)
                break
            shown[-1], matched = self._stops.push(self._text.push(token), may_end=may_end)
            if matched is not None:
                return tokens[: index + 1], End(Reason.STOP, text=matched), shown, ""
        if end is not None:
            may_end = self.answered + len(tokens) > self._min_tokens
            piece, matched = self._stops.push(self._text.flush(), may_end=may_end)
            piece = piece if matched else piece + self._stops.flush()
            piece += unseen if self._show_stop else ""
            if shown:
                shown[-1] += piece
            else:
                rest = piece
            if matched is not None and end.reason is Reason.LENGTH:
                end = End(Reason.STOP, text=matched)
        return tokens, end, shown, rest

    def _count(self, piece: CommittedTokens, kept: int, at: float) -> None:
        stats = self.stats
        if piece.started is not None:
            stats.placed = stats.arrived + piece.started.queue_s
            self.cached_tokens = piece.started.cached_tokens
            self.prompt_logprobs = piece.started.prompt_logprobs
        elif stats.placed is None and piece.round is None:
            self.again += kept
            return
        if kept and stats.first is None:
            stats.first = at
        if piece.round is not None:
            accepted = stats.round(piece.round, kept)
            if self.steps is not None and kept:
                self.steps.append((piece.round.verified, accepted))


class OutputProcessor:
    """What is shown of all answers of one request. held: how many tokens of each answer the client
    has, for a resumed request."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer | None,
        arrived: float,
        held: Sequence[int] = (),
    ) -> None:
        self.request = request
        had = held or (0,) * request.choices
        self.answers = [
            AnswerOutput(request, index, tokenizer, arrived, had[index])
            for index in range(request.choices)
        ]

    @property
    def done(self) -> bool:
        return all(answer.end is not None for answer in self.answers)

    @property
    def prompt_logprobs(self) -> ScoredPrompt | None:
        """Log-probabilities of the prompt, if requested, after the first commit of answer 0."""
        return self.answers[0].prompt_logprobs

    @property
    def unsaid(self) -> int:
        """Tokens that were committed after stop strings."""
        return sum(answer.unsaid for answer in self.answers)

    def read(self, waiting: Iterable[tuple[CommittedTokens, float]]) -> list[OutputChunk]:
        """Reads (piece, clock time of arrival) pairs and returns one chunk per answer to show."""
        shown: dict[int, OutputChunk] = {}
        for piece, at in waiting:
            answer = self.answers[piece.index]
            if piece.index not in shown:
                shown[piece.index] = OutputChunk(piece.index, max(answer.answered, answer.held))
            answer.read(piece, at, shown[piece.index])
        return [one for one in shown.values() if one.says or one.end]


def per_token_s(answers: Iterable[AnswerOutput]) -> float:
    """Mean seconds per token over all answers, without the first token of each."""
    made = [(answer, answer.answered - answer.again) for answer in answers]
    told = [(answer.stats.per_token_s(tokens), tokens - 1) for answer, tokens in made if tokens > 1]
    after = sum(count for _, count in told)
    return sum(each * count for each, count in told) / after if after else 0.0
