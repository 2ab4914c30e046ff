"""Answers a request of another interface: translates it to chat, and writes the answer's parts.

Nothing is kept between requests. A writer makes the events of a stream; the whole answer is its
state after the last event, so both agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from fastapi import Request
from starlette.responses import Response

from coordinator.answers.answer import End
from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.body import validated
from coordinator.http.chat import AskedChat, read_chat
from coordinator.http.reader import AnswerPart, Reader
from coordinator.http.reply import MANY, Object, respond, usage_of
from coordinator.http.running_prompts import RunningPrompts
from coordinator.http.schema import ChatBody, SharedFields
from coordinator.http.stream import event, written
from dspark.errors import naming

_MESSAGE = re.compile(r"messages\[(\d+)\]")


class CommonFields(SharedFields):
    """Fields that all interfaces share, with those of chat that these take too."""

    chat_template_kwargs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None


class Translated(NamedTuple):
    """Fields of a body of chat, None for absent ones, translated from another body. places: the
    field of that body for each message. names: (pattern of a chat field, its name in that body);
    the first match counts."""

    fields: Object
    places: Sequence[str]
    names: Sequence[tuple[str, str]]

    def name(self, field: str) -> str:
        """The translated body's name for a field of chat."""
        message = _MESSAGE.match(field)
        if message is not None:
            return self.places[int(message[1])]
        for pattern, name in self.names:
            if (found := re.match(pattern, field)) is not None:
                return found.expand(name) + field[found.end() :]
        return field


def ours(body: CommonFields) -> Object:
    """The common fields that the body sets, as fields of chat."""
    return body.model_dump(include=set(CommonFields.model_fields), exclude_none=True, by_alias=True)


class EventWriter(Protocol):
    """Writes an answer in one interface, as events with a `type`: one block of reasoning, text or a
    call after the other. usage: in chat's form."""

    kinds: tuple[str, str, str]  # the types of blocks: reasoning, text, a call
    whole: Object  # the whole response, complete after `end`
    blocks: list[Object]  # of it
    written: str = ""  # content of the last block

    def begin(self, usage: Object) -> Iterable[Object]:
        """Events before the first part."""

    def part(self, part: AnswerPart) -> Iterator[Object]:
        """Events of one part."""
        thought, text, call = self.kinds
        kind = call if part.call is not None else thought if part.reasoning else text
        if part.name or not self.blocks or self.blocks[-1]["type"] != kind:
            yield from self.stop()
            self.written = ""
            yield from self.start(kind, part)
        if said := part.arguments or part.reasoning or part.text:
            self.written += said
            yield from self.more(kind, said)

    def start(self, kind: str, part: AnswerPart) -> Iterable[Object]:
        """Adds a block that begins with `part`, and returns its events."""

    def more(self, kind: str, said: str) -> Iterable[Object]:
        """Events of more content of the last block."""

    def stop(self) -> Iterable[Object]:
        """Completes the last block, if there is one, and returns its events."""

    def end(self, end: End, usage: Object, *, called: bool) -> Iterable[Object]:
        """Events of the end of the answer. called: see `Reader`."""

    def failed(self, error: Exception) -> Object:
        """The event that reports an error after the first event."""


async def translated_chat(api: Api, translated: Translated) -> tuple[ChatBody, AskedChat]:
    """The validated body of chat, and its request; errors name fields of the translated body."""
    with naming(translated.name):
        fields = {name: value for name, value in translated.fields.items() if value is not None}
        body = validated(ChatBody, json.dumps(fields).encode())
        return body, await read_chat(api, body)


async def answer_chat(
    api: Api,
    request: Request,
    translated: Translated,
    make_writer: Callable[[str, str], EventWriter],
    *,
    kind: str,
) -> Response:
    """Runs the chat and returns the response. kind: first word of the answer's id. make_writer:
    called with the answer's id and the model's name."""
    model = api.check_model(translated.fields.get("model"), api.processor.cell.terms())
    api.check_capacity()
    body, chat = await translated_chat(api, translated)
    with naming(translated.name):
        asking = await RunningPrompts.begin(
            api, request, [chat.prompt], chat.options, kind=kind, names=chat.names
        )
    writer = make_writer(asking.id, model)
    told = _told(asking, chat.reader(), writer, translated)

    async def whole() -> bytes:
        async for _ in told:
            pass
        many = usage_of(asking)["total_tokens"] > MANY
        return await beside(many, written, writer.whole)

    def failed(error: Exception) -> bytes:
        return _event(writer.failed(error))

    events = _events(told, asking) if body.stream else None
    return await respond(api, request, asking, events, whole, failed)


async def _told(
    asking: RunningPrompts, reader: Reader, writer: EventWriter, translated: Translated
) -> AsyncGenerator[list[Object]]:
    """Yields the events that are ready together. The first wait for a part of the answer, so that
    an error before it gets a status."""
    answer, begun = asking.streams[0].output.answers[0], False
    with naming(translated.name):
        async for _, shown in asking.parts():
            out: list[Object] = []
            if not begun:
                begun, out = True, [*writer.begin(usage_of(asking))]
            texts = [text for one in shown for text in one.texts]
            rest = "".join(one.rest for one in shown)
            parts = reader.read(texts, rest=rest, over=answer.end is not None)
            out += [event for part in parts for event in writer.part(part)]
            if answer.end is not None:
                usage = usage_of(asking, reader.thought)
                out += writer.end(answer.end, usage, called=reader.called)
            yield out


async def _events(
    told: AsyncGenerator[list[Object]], asking: RunningPrompts
) -> AsyncGenerator[bytes]:
    try:
        async for objects in told:
            if objects:
                yield b"".join(map(_event, objects))
    finally:
        await told.aclose()
        asking.leave()


def _event(told: Object) -> bytes:
    return b"event: %b\n%b" % (str(told["type"]).encode(), event(told))
