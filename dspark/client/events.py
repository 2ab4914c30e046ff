"""The client's events and results: typed, frozen, without protobuf.

Every token is in exactly one `Chunk`, in order; `Finished` is sent once and last. Text may lag
behind the ids at byte boundaries and stop strings, so the text of an answer is the concatenation of
all its chunks. The `index` of a chunk tells which of several answers it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, TypeAlias

from dspark.client.fields import copied
from dspark.wire.v1 import generate_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position, of the model itself: before penalties, bias and
    truncation."""

    logprob: float  # of the token that was chosen
    top: tuple[tuple[int, float], ...] = ()  # (id, log-probability), likeliest first


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of an answer."""

    text: str
    token_ids: tuple[int, ...]
    offset: int  # index in the answer of the first of token_ids
    index: int = 0  # which of the n answers
    logprobs: tuple[TokenLogprobs, ...] = ()  # one per token, if requested


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens of a request; `cached_tokens` of the prompt needed no prefill."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """Statistics of drafting over a request's answers; the histograms count rounds by accepted and
    by verified tokens."""

    rounds: int
    draft_tokens: int
    verified_tokens: int
    accepted_tokens: int
    mean_acceptance_length: float
    acceptance_histogram: tuple[int, ...]
    verified_histogram: tuple[int, ...]
    policy: str
    rule: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of a request in milliseconds, measured by the server from its arrival."""

    queue_ms: float
    ttft_ms: float
    itl_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How one of n answers ended."""

    index: int
    finish_reason: str  # "stop", "length" or "abort"
    matched_stop: int | str | None
    completion_tokens: int


class _WithoutTokens:
    """An event without text: `text` is empty, so that a loop may print the text of every event."""

    __slots__ = ()
    text: ClassVar[str] = ""
    token_ids: ClassVar[tuple[int, ...]] = ()


@dataclass(frozen=True, slots=True)
class Finished(_WithoutTokens):
    """The last event of a request: why its first answer ended, and statistics of all answers."""

    finish_reason: str  # "stop", "length" or "abort"
    matched_stop: int | str | None
    usage: Usage
    speculation: Speculation
    timings: Timings
    # one per answer, by index; empty from servers that support one answer only
    choices: tuple[ChoiceEnd, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs(_WithoutTokens):
    """Log-probabilities of a prompt's tokens, each given those before it; None for the first, which
    has none."""

    tokens: tuple[TokenLogprobs | None, ...]
    ranks: tuple[int | None, ...]  # place of each token among all, 1 for the likeliest


Event: TypeAlias = Chunk | PromptLogprobs | Finished


@dataclass(frozen=True, slots=True)
class Choice:
    """One of n answers."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    matched_stop: int | str | None
    logprobs: tuple[TokenLogprobs, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "logprobs" or value}


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer; of several, the first one, and all of them in `choices`."""

    text: str
    token_ids: tuple[int, ...]
    end: Finished
    choices: tuple[Choice, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None  # if requested

    @staticmethod
    def of(events: Sequence[Event]) -> Completion:
        """The completion made of all events of a request, `Finished` last."""
        end = events[-1]
        assert isinstance(end, Finished)
        ends = end.choices or (
            ChoiceEnd(0, end.finish_reason, end.matched_stop, end.usage.completion_tokens),
        )
        choices = tuple(_choice(events, its) for its in ends)
        scored = next((event for event in events if isinstance(event, PromptLogprobs)), None)
        return Completion(choices[0].text, choices[0].token_ids, end, choices, scored)

    def as_json(self) -> dict[str, Any]:
        """The stable JSON object that `dspark generate --json` prints."""
        end = asdict(self.end)
        del end["speculation"]["rule"], end["timings"]["queue_ms"]
        told: dict[str, Any] = {"text": self.text, "token_ids": self.token_ids}
        told |= {name: end[name] for name in ("finish_reason", "usage", "speculation", "timings")}
        if len(self.choices) > 1 or any(choice.logprobs for choice in self.choices):
            told["choices"] = [choice.as_json() for choice in self.choices]
        if self.prompt_logprobs is not None:
            told["prompt_logprobs"] = asdict(self.prompt_logprobs)["tokens"]
        plain: dict[str, Any] = json.loads(json.dumps(told))  # lists, not tuples
        return plain


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model and drafter that a cell serves, its limits and its defaults."""

    model: str
    drafter: str
    vocab_size: int
    context_length: int
    block_size: int
    stop_token_ids: tuple[int, ...]
    policy: str
    rule: str
    has_tokenizer: bool


def read_event(message: generate_pb2.GenerateResponse) -> Event | None:
    """The event of one streamed message; None for kinds this version does not know."""
    kind = message.WhichOneof("response")
    if kind == "chunk":
        chunk = message.chunk
        told = tuple(_logprobs(one) for one in chunk.logprobs) if chunk.logprobs else ()
        return Chunk(chunk.text, tuple(chunk.token_ids), chunk.offset, chunk.index, told)
    if kind == "prompt_logprobs":
        return _scored(message.prompt_logprobs)
    if kind != "complete":
        return None
    return copied(Finished, message.complete)


def _scored(told: types_pb2.PromptLogprobs) -> PromptLogprobs:
    pairs = list(zip(told.top_ids, told.top_logprobs, strict=True))
    tokens = [
        TokenLogprobs(logprob, tuple(pairs[at * told.top : (at + 1) * told.top]))
        for at, logprob in enumerate(told.logprobs)
    ]
    return PromptLogprobs((None, *tokens), (None, *told.ranks))


def _logprobs(message: types_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        message.logprob, tuple(zip(message.top_ids, message.top_logprobs, strict=False))
    )


def _choice(events: Sequence[Event], end: ChoiceEnd) -> Choice:
    chunks = [event for event in events if isinstance(event, Chunk) and event.index == end.index]
    return Choice(
        index=end.index,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        finish_reason=end.finish_reason,
        matched_stop=end.matched_stop,
        logprobs=tuple(told for chunk in chunks for told in chunk.logprobs),
    )
