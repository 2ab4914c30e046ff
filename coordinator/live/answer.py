"""An answer for the live page: every token with its origin, every round with its explanation, as
JSON."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field

from coordinator.answers.answer import CommittedTokens
from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.errors import param_of
from coordinator.http.schema import BodyPart, Listed
from coordinator.http.stream import EventStream, event
from coordinator.http.template import Turn, newest_that_fit
from coordinator.lanes.watch import Explain, RoundPart
from coordinator.reception.input_processor import LONG_TEXT, encoded_now
from coordinator.reception.response_stream import ResponseStream, write_complete
from coordinator.reception.tokenizer import Tokenizer
from coordinator.requests.request import inside
from coordinator.watching.explaining import origins, told
from dspark.client.explanation import RoundExplanation
from dspark.client.fields import copied, words
from dspark.client.request import write_request
from dspark.errors import naming
from dspark.wire.v1.control_pb2 import ORIGIN_PLAIN, Origin

ORIGINS = words(Origin.DESCRIPTOR)
MAX_CONTENT = 20_000  # characters of a message
MAX_MESSAGES = 1024
MAX_TOKENS = 1024

Rule = Literal["", "token", "block", "coupled"]
Policy = Annotated[str, Field(max_length=40)]


class Message(BodyPart):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_CONTENT)]


class AnswerRequest(BodyPart):
    """A request for an answer with its rounds explained. The conversation is not kept: the page
    sends all of it each time."""

    messages: Annotated[Listed[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] = 256
    temperature: float = 0.0
    policy: Policy = ""
    rule: Rule = ""
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    drafter: str = ""
    # a JSON schema, or a regular expression
    shape: Annotated[str, Field(max_length=MAX_CONTENT)] = ""


async def prompt_of(
    api: Api, messages: Sequence[Turn], max_tokens: int
) -> tuple[str | tuple[int, ...], int]:
    """(prompt, how many of the oldest messages were left out so that `max_tokens` fit behind it).

    Without a chat template the newest message is the prompt, as plain text.
    """
    template, tokenizer = api.template, api.processor.tokenizer
    if template is None or tokenizer is None:
        return messages[-1]["content"], 0

    def encode(said: list[Turn]) -> tuple[int, ...]:
        text = template.render(said, {}, add_generation_prompt=True)
        # the template writes special tokens itself
        return encoded_now(tokenizer, text, "messages", add_special=False)

    room = api.processor.cell.terms().limits.longest - max_tokens
    long = sum(len(message["content"]) for message in messages) > LONG_TEXT
    return await beside(long, newest_that_fit, messages, room, encode)


class AnswerEvents:
    """Makes the events of one answer from its committed pieces."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._offset = 0
        self._parts: dict[int, RoundPart] = {}

    def say(
        self, piece: CommittedTokens, texts: Iterator[str], parts: Sequence[RoundPart]
    ) -> dict[str, Any]:
        """The event of a committed piece. texts: of its tokens and those of later pieces, if the
        target has a tokenizer. parts: explanations received since the last one."""
        self._parts.update((part.offset, part) for part in parts)
        round, shown = piece.round, len(piece.tokens)
        came = [ORIGIN_PLAIN] * shown
        if round is not None:
            came = origins(round.accepted, round.verified, shown)
        part = self._parts.pop(self._offset, None)
        found = None
        if part is not None and round is not None:
            found = copied(RoundExplanation, told(part))
        forced = found.forced if found is not None else (False,) * shown
        said = {
            "type": "round" if round is not None else "first",
            "offset": self._offset,
            "tokens": [
                {
                    "id": token,
                    "text": next(texts, "") if self._tokenizer else self._alone(token),
                    "origin": ORIGINS[origin],
                    "forced": only,
                }
                for token, origin, only in zip(piece.tokens, came, forced, strict=True)
            ],
            "told": self._told(found) if found is not None else None,
        }
        self._offset += shown
        return said

    def _alone(self, token: int) -> str:
        if self._tokenizer is None:
            return f" {token}"
        return self._tokenizer.decode([token], skip_special=False)

    def _told(self, found: RoundExplanation) -> dict[str, Any]:
        """The explanation as a dict, with a text for every drafted token that it names."""
        told = asdict(found)
        for slot in told["slots"]:
            slot["text"] = "" if slot["token_id"] is None else self._alone(slot["token_id"])
        return told


async def answer_events(api: Api, explain: Explain, wish: AnswerRequest) -> EventStream:
    """The event stream of one answer: `begin`, `first`, a `round` for each round, `end`."""
    options = wish.model_dump(exclude={"messages", "shape"})
    options["request_id"] = f"live-{secrets.token_hex(8)}"
    if wish.shape:
        form = "json_schema" if wish.shape.startswith("{") else "regex"
        options["constraint"] = {form: wish.shape}
    messages = [each.model_dump() for each in wish.messages]
    prompt, left_out = await prompt_of(api, messages, wish.max_tokens)
    with naming(_name):
        stream = await api.processor.accept(write_request(prompt, options))
    request = stream.request
    begin = {
        "type": "begin",
        "id": request.id,
        "prompt_tokens": len(request.prompt),
        "left_out": left_out,
        "policy": str(request.policy),
        "rule": request.params.rule.name.lower(),
    }

    async def events() -> AsyncGenerator[bytes]:
        try:
            with explain.request(inside(request.tenant, request.id)) as watch:
                # watching begins before the first round
                speaker = AnswerEvents(api.processor.tokenizer)
                yield event(begin)
                while not stream.done:
                    with naming(_name):
                        shown = await stream.parts()
                    texts = chain.from_iterable([one.texts for one in shown])
                    parts = watch.taken()
                    for piece, _ in stream.pieces:
                        yield event(speaker.say(piece, texts, parts))
                        parts = []
                yield event({"type": "end", **ending(stream)})
        finally:
            stream.leave()

    return EventStream(api, events())


def _name(field: str) -> str:
    """The name that a wish has for a field of the public gRPC message."""
    name = param_of(field).removeprefix("speculation.")
    return "shape" if name.startswith("constraint") else name


def ending(stream: ResponseStream) -> dict[str, object]:
    """Why the answer ended, with its counts of tokens and rounds, and times in ms."""
    message = write_complete(stream.output).complete
    stats, timings = message.speculation, message.timings
    end = stream.output.answers[0].end
    return {
        "reason": end.reason.value if end is not None else "unknown",
        "tokens": message.usage.completion_tokens,
        "rounds": stats.rounds,
        "drafted": stats.draft_tokens,
        "verified": stats.verified_tokens,
        "accepted": stats.accepted_tokens,
        "tau": round(stats.mean_acceptance_length, 3),
        "first_ms": round(timings.ttft_ms, 2),
        "total_ms": round(timings.total_ms, 2),
    }
