"""/v1/messages: Anthropic's Messages, answered by chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from coordinator.answers.answer import End, Reason
from coordinator.dialects.messages_body import CountBody, MessagesBody, arguments_of, translated
from coordinator.dialects.telling import answer_chat, translated_chat
from coordinator.http.api import Api
from coordinator.http.calls import Part
from coordinator.http.errors import as_message, described
from coordinator.http.reply import Object
from coordinator.http.schema import described_by, read_body
from coordinator.reception.input_processor import prompt_bytes


def routes(api: Api) -> APIRouter:
    arguments = api.template.arguments if api.template is not None else frozenset[str]()
    router = APIRouter(tags=["Anthropic"], dependencies=[Depends(api.guard)])

    @router.post("/v1/messages", openapi_extra=described_by(MessagesBody))
    async def messages(request: Request) -> Response:
        """Answers a conversation."""
        body = await read_body(request, MessagesBody, prompt_bytes(api.processor.cell))
        chat = translated(body, arguments)
        return await answer_chat(api, request, chat, MessageWriter, kind="msg", stream=bool(body.stream))

    @router.post("/v1/messages/count_tokens", openapi_extra=described_by(CountBody))
    async def count(request: Request) -> Response:
        """How many tokens a conversation is."""
        body = await read_body(request, CountBody, prompt_bytes(api.processor.cell))
        api.check_model(body.model, api.processor.cell.terms())
        _, chat = await translated_chat(api, translated(body, arguments))
        return JSONResponse({"input_tokens": len(chat.prompt)})

    return router


class MessageWriter:
    """A `message` as its blocks come."""

    def __init__(self, name: str, model: str) -> None:
        self._message: Object = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._content: list[Object] = self._message["content"]
        self._written = ""  # of the block that is open
        self._open = False

    def begin(self, usage: Object) -> Iterator[Object]:
        yield {"type": "message_start", "message": self._message | {"content": [], "usage": _usage(usage)}}

    def part(self, part: Part) -> Iterator[Object]:
        if part.call is None:
            kind, said = ("thinking", part.reasoning) if part.reasoning else ("text", part.text)
            if not self._open or self._content[-1]["type"] != kind:
                yield from self._start({"type": kind, kind: "", **({"signature": ""} if part.reasoning else {})})
            yield from self._more(f"{kind}_delta", kind, said)
            return
        if part.name:
            yield from self._start({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
        if part.arguments:
            yield from self._more("input_json_delta", "partial_json", part.arguments)

    def end(self, end: End, usage: Object) -> Iterator[Object]:
        yield from self._stop()
        self._message |= {**_stopped(end, self._content), "usage": _usage(usage)}
        stopped = {key: self._message[key] for key in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": stopped, "usage": self._message["usage"]}
        yield {"type": "message_stop"}

    def whole(self) -> Object:
        return self._message

    def failed(self, error: Exception) -> Object:
        status, told, _ = described(error)
        return as_message(status, told)

    def _start(self, block: Object) -> Iterator[Object]:
        yield from self._stop()
        self._content.append(dict(block))
        self._open, self._written = True, ""
        yield {"type": "content_block_start", "index": len(self._content) - 1, "content_block": block}

    def _more(self, kind: str, key: str, said: str) -> Iterator[Object]:
        self._written += said
        yield {
            "type": "content_block_delta",
            "index": len(self._content) - 1,
            "delta": {"type": kind, key: said},
        }

    def _stop(self) -> Iterator[Object]:
        if not self._open:
            return
        self._open, block = False, self._content[-1]
        kind = block["type"]
        block |= {"input": arguments_of(self._written)} if kind == "tool_use" else {kind: self._written}
        yield {"type": "content_block_stop", "index": len(self._content) - 1}


def _usage(told: Object) -> Object:
    cached = told["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": told["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": told["completion_tokens"],
    }


def _stopped(end: End, content: list[Object]) -> dict[str, Any]:
    if end.reason is Reason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if end.text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.text}
    called = any(block["type"] == "tool_use" for block in content)
    return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}
