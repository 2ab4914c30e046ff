"""One way from a body in other words to its answer: a body of chat, its answer read part by part,
and a writer.

Nothing is kept between requests. A writer makes the events of a stream; the whole answer is what it
has made by their end, so both say the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from fastapi import Request
from starlette.responses import Response

from coordinator.answers.answer import End
from coordinator.clock import beside
from coordinator.http.api import Api
from coordinator.http.asking import Asking
from coordinator.http.calls import Part, joined
from coordinator.http.chat import AskedChat, read_chat
from coordinator.http.errors import param_of
from coordinator.http.reply import MANY, Object, respond, usage_of
from coordinator.http.schema import ChatBody, SharedFields, validated
from coordinator.http.stream import written
from coordinator.http.thoughts import Reader
from dspark.errors import naming

_MESSAGE = re.compile(r"messages\[(\d+)\]")


class CommonFields(SharedFields):
    """Those, and what chat has for all of them."""

    chat_template_kwargs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None


class Translated(NamedTuple):
    """A body of chat, None where nothing is said. places: where each of its messages stands in the
    body it was made of. names: patterns of its fields, and what they are called there; the first
    that fits counts."""

    fields: Object
    places: Sequence[str]
    names: Sequence[tuple[str, str]]

    def name(self, field: str) -> str:
        """What a field of the chat is called in the body."""
        field = param_of(field)
        message = _MESSAGE.match(field)
        if message is not None:
            return self.places[int(message[1])]
        for pattern, name in self.names:
            if (found := re.match(pattern, field)) is not None:
                return found.expand(name) + field[found.end() :]
        return field


def ours(body: CommonFields) -> Object:
    """Those of its fields that are given, as chat has them."""
    return body.model_dump(include=set(CommonFields.model_fields), exclude_none=True, by_alias=True)


class Writer(Protocol):
    """An answer in other words, as objects that have a `type`. usage: as chat tells it."""

    whole: Object  # all of it at once

    def begin(self, usage: Object) -> Iterable[Object]:
        """Before anything is known of it."""

    def part(self, part: Part) -> Iterable[Object]:
        """More of it."""

    def end(self, end: End, usage: Object) -> Iterable[Object]:
        """All of it is there."""

    def failed(self, error: Exception) -> Object:
        """What is said where it fails on the way."""


async def translated_chat(api: Api, translated: Translated) -> tuple[ChatBody, AskedChat]:
    """The chat that a body stands for."""
    with naming(translated.name):
        fields = {name: value for name, value in translated.fields.items() if value is not None}
        body = validated(ChatBody, json.dumps(fields).encode())
        return body, await read_chat(api, body)


async def answer_chat(
    api: Api,
    request: Request,
    translated: Translated,
    make_writer: Callable[[str, str], Writer],
    *,
    kind: str,
) -> Response:
    """kind: first word of the answer's id. make_writer: of an answer of this id by this model."""
    model = api.check_model(translated.fields.get("model"), api.processor.cell.terms())
    body, chat = await translated_chat(api, translated)
    with naming(translated.name):
        asking = await Asking.begin(
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

    return await respond(
        api, request, asking, _events(told, asking) if body.stream else None, whole, failed
    )


async def _told(
    asking: Asking, reader: Reader, writer: Writer, translated: Translated
) -> AsyncGenerator[list[Object]]:
    """What is said together. The first of it waits until something is known, so that an error has a
    status."""
    answer, begun = asking.streams[0].output.answers[0], False
    with naming(translated.name):
        async for _, shown in asking.parts():
            out: list[Object] = []
            if not begun:
                begun, out = True, [*writer.begin(usage_of(asking))]
            parts = [part for one in shown for text in one.texts for part in reader.push(text)]
            if answer.end is not None:
                parts += reader.close()
            out += [event for part in joined(parts) for event in writer.part(part)]
            if answer.end is not None:
                out += writer.end(answer.end, usage_of(asking, reader.thought))
            yield out


async def _events(told: AsyncGenerator[list[Object]], asking: Asking) -> AsyncGenerator[bytes]:
    try:
        async for objects in told:
            if objects:
                yield b"".join(map(_event, objects))
    finally:
        await told.aclose()
        asking.leave()


def _event(told: Object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(told["type"]).encode(), written(told))
