"""/v1/responses: OpenAI's Responses, answered by chat."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from functools import partial

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from coordinator.answers.answer import End, Reason
from coordinator.dialects.responses_body import ResponsesBody, translated
from coordinator.dialects.telling import answer_chat
from coordinator.http.api import Api
from coordinator.http.calls import Part
from coordinator.http.errors import described
from coordinator.http.reply import Object
from coordinator.http.schema import described_by, read_body
from coordinator.reception.input_processor import prompt_bytes


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], dependencies=[Depends(api.guard)])

    @router.post("/v1/responses", openapi_extra=described_by(ResponsesBody))
    async def responses(request: Request) -> Response:
        """Answers a conversation; nothing of it is kept."""
        body = await read_body(request, ResponsesBody, prompt_bytes(api.processor.cell))
        writer = partial(ResponseWriter, body)
        return await answer_chat(api, request, translated(body), writer, kind="resp", stream=bool(body.stream))

    return router


_REPEATED = {"metadata", "reasoning", "text", "tool_choice", "tools"}  # what an answer says of its request


class ResponseWriter:
    """A `response` as its items come."""

    def __init__(self, body: ResponsesBody, name: str, model: str) -> None:
        asked = body.model_dump(mode="json", by_alias=True, exclude_unset=True, include=_REPEATED)
        self._response: Object = {
            "id": name,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": asked.get("metadata") or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": asked.get("reasoning") or {"effort": None, "summary": None},
            "store": False,
            "temperature": body.temperature,
            "text": asked.get("text") or {"format": {"type": "text"}},
            "tool_choice": asked.get("tool_choice") or "auto",
            "tools": asked.get("tools") or [],
            "top_p": body.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": body.user,
        }
        self._items: list[Object] = self._response["output"]
        self._written = ""  # of the item that is open
        self._open = False
        self._number = 0

    def begin(self, usage: Object) -> Iterator[Object]:
        for state in ("created", "in_progress"):
            yield self._told(f"response.{state}", response=self._response | {"output": []})

    def part(self, part: Part) -> Iterator[Object]:
        if part.call is None:
            kind, said = ("reasoning", part.reasoning) if part.reasoning else ("message", part.text)
            if not self._open or self._items[-1]["type"] != kind:
                yield from self._start_text(kind)
            yield from self._more(_DELTAS[kind], said)
            return
        if part.name:
            call = {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": ""}
            yield from self._start("fc", call)
        if part.arguments:
            yield from self._more(_DELTAS["function_call"], part.arguments)

    def end(self, end: End, usage: Object) -> Iterator[Object]:
        whole = end.reason is not Reason.LENGTH
        yield from self._stop("completed" if whole else "incomplete")
        details = None if whole else {"reason": "max_output_tokens"}
        status = "completed" if whole else "incomplete"
        self._response |= {"status": status, "incomplete_details": details, "usage": _usage(usage)}
        yield self._told(f"response.{status}", response=self._response)

    def whole(self) -> Object:
        return self._response

    def failed(self, error: Exception) -> Object:
        told = described(error)[1]["error"]
        return self._told("error", code=told["code"], message=told["message"], param=told["param"])

    def _told(self, kind: str, **fields: object) -> Object:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _start(self, kind: str, item: Object) -> Iterator[Object]:
        yield from self._stop("completed")
        made = {"id": f"{kind}_{secrets.token_hex(12)}", **item, "status": "in_progress"}
        self._items.append(made)
        self._open, self._written = True, ""
        yield self._told("response.output_item.added", output_index=len(self._items) - 1, item=dict(made))

    def _start_text(self, kind: str) -> Iterator[Object]:
        empty: Object = {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        yield from self._start("msg" if kind == "message" else "rs", {"type": kind, **empty})
        yield self._told("response.content_part.added", **self._place(), content_index=0, part=_content(kind, ""))

    def _more(self, kind: str, said: str) -> Iterator[Object]:
        self._written += said
        where = self._place() if kind == _DELTAS["function_call"] else self._place() | {"content_index": 0}
        more: Object = {"logprobs": []} if kind == _DELTAS["message"] else {}
        yield self._told(f"{kind}.delta", **where, delta=said, **more)

    def _stop(self, status: str) -> Iterator[Object]:
        if not self._open:
            return
        self._open, item = False, self._items[-1]
        item["status"], kind = status, item["type"]
        done = f"{_DELTAS[kind]}.done"
        if kind == "function_call":
            item["arguments"] = self._written or "{}"
            yield self._told(done, **self._place(), arguments=item["arguments"], name=item["name"])
        else:
            content = _content(kind, self._written)
            item["content"] = [content]
            where = self._place() | {"content_index": 0}
            more: Object = {"logprobs": []} if kind == "message" else {}
            yield self._told(done, **where, text=self._written, **more)
            yield self._told("response.content_part.done", **where, part=content)
        yield self._told("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _place(self) -> Object:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}


_DELTAS = {
    "message": "response.output_text",
    "reasoning": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
}


def _content(kind: str, text: str) -> Object:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(told: Object) -> Object:
    return {
        "input_tokens": told["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": told["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": told["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": told["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": told["total_tokens"],
    }
