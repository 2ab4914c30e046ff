"""/v1/responses: OpenAI's Responses, translated to chat completions and back. Fields that need
stored answers are refused by name."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, Self

from fastapi import APIRouter, Depends, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from coordinator.answers.answer import End, Reason
from coordinator.dialects.telling import CommonFields, EventWriter, Translated, answer_chat, ours
from coordinator.http.api import Api
from coordinator.http.body import described_by
from coordinator.http.errors import described
from coordinator.http.reader import AnswerPart
from coordinator.http.reply import Object
from coordinator.http.schema import BodyPart, Listed, StreamOptions
from coordinator.http.template import joined_texts, string
from dspark.errors import InvalidRequest, Unsupported

_NAMES = (
    ("max_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function", "tool_choice"),
    ("messages", "input"),
)
# Known fields that need storage or are not supported, with their values that have no effect.
_IDLE: dict[str, tuple[Any, ...]] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "max_tool_calls": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_INCLUDED = ("reasoning.encrypted_content",)  # has no effect: reasoning is sent in clear text
_TEXTS = dict.fromkeys(
    ("input_text", "output_text", "text", "summary_text", "reasoning_text"), "text"
) | {"refusal": "refusal"}


class ResponsesTool(BodyPart):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesChoice(BodyPart):
    type: Literal["function"]
    name: str


class ResponsesFormat(BodyPart):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(BodyPart):
    format: ResponsesFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(BodyPart):
    effort: str | None = None
    summary: Literal["auto"] | None = None


class ResponsesBody(CommonFields):
    """Body of /v1/responses."""

    idle = _IDLE
    stored = ("background", "conversation", "previous_response_id", "prompt", "store")

    input: str | Listed[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    stream_options: StreamOptions | None = None
    tools: Listed[ResponsesTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    include: Listed[str] | None = None
    # Fields without effect: labels for the client's own use.
    client_metadata: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @model_validator(mode="after")
    def _included(self) -> Self:
        for index, name in enumerate(self.include or ()):
            if name not in _INCLUDED:
                raise Unsupported(f"include[{index}]", f"{name[:100]!r} is not supported")
        return self


def translated(body: ResponsesBody) -> Translated:
    """The body as a body of chat. Raises InvalidRequest naming a field of the body."""
    messages: list[Object] = []
    places: list[str] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
        places.append("instructions")
    items = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    for index, item in enumerate(items):
        at = "input" if isinstance(body.input, str) else f"input[{index}]"
        _add(messages, item, at)
        places += [at] * (len(messages) - len(places))
    fields: Object = {
        "messages": messages,
        "max_tokens": body.max_output_tokens,
        "tools": [_tool(tool) for tool in body.tools] if body.tools else None,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format(body.text.format if body.text is not None else None),
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        **ours(body),
    }
    return Translated(fields, places, _NAMES)


def _add(messages: list[Object], item: Object, at: str) -> None:
    """Adds an item as a message of chat, or to the assistant's message that it belongs to."""
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            raise InvalidRequest(f"{at}.role", "must be user, assistant, system or developer")
        said = {"role": role, "content": joined_texts(item.get("content"), f"{at}.content", _TEXTS)}
        if role == "assistant" and _thinks(messages):
            messages[-1] |= said
        else:
            messages.append(said)
    elif kind == "function_call":
        function = {"name": string(item, "name", at), "arguments": string(item, "arguments", at)}
        call = {"id": string(item, "call_id", at), "type": "function", "function": function}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = joined_texts(item.get("output"), f"{at}.output", _TEXTS)
        messages.append(
            {"role": "tool", "tool_call_id": string(item, "call_id", at), "content": output}
        )
    elif kind == "reasoning":
        thought = joined_texts(
            item.get("content") or item.get("summary") or "", f"{at}.content", _TEXTS
        )
        messages.append({"role": "assistant", "content": None, "reasoning_content": thought})
    elif kind == "item_reference":
        raise Unsupported(
            f"{at}.type", "'item_reference' is not supported: nothing is kept between requests"
        )
    else:
        raise Unsupported(f"{at}.type", f"{str(kind)[:100]!r} is not supported")


def _thinks(messages: list[Object]) -> bool:
    """Whether the last message is reasoning whose answer is still to come."""
    return (
        bool(messages) and "reasoning_content" in messages[-1] and messages[-1]["content"] is None
    )


def _tool(tool: ResponsesTool) -> Object:
    function = tool.model_dump(exclude={"type"}, exclude_none=True)
    return {"type": "function", "function": function}


def _choice(choice: str | ResponsesChoice | None) -> Any:
    if isinstance(choice, ResponsesChoice):
        return {"type": "function", "function": {"name": choice.name}}
    return choice


def _format(form: ResponsesFormat | None) -> Object | None:
    if form is None or form.type != "json_schema":
        return {"type": form.type} if form is not None else None
    return {"type": "json_schema", "json_schema": {"name": form.name or "", "schema": form.schema_}}


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["OpenAI"], dependencies=[Depends(api.guard)])

    @router.post("/v1/responses", openapi_extra=described_by(ResponsesBody))
    async def responses(request: Request) -> Response:
        """Answers a conversation; nothing of it is kept."""
        body = await api.read(request, ResponsesBody)
        writer = partial(ResponseWriter, body)
        return await answer_chat(api, request, translated(body), writer, kind="resp")

    return router


# fields of the request that a response repeats
_REPEATED = {"metadata", "reasoning", "text", "tool_choice", "tools"}


class ResponseWriter(EventWriter):
    """Writer of a `response` and its events, item by item."""

    kinds = ("reasoning", "message", "function_call")

    def __init__(self, body: ResponsesBody, name: str, model: str) -> None:
        asked = body.model_dump(mode="json", by_alias=True, exclude_unset=True, include=_REPEATED)
        self.whole = {
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
        self.blocks = self.whole["output"]
        self._status = "completed"  # of the items that stop
        self._number = 0

    def begin(self, usage: Object) -> Iterator[Object]:
        for state in ("created", "in_progress"):
            yield self._told(f"response.{state}", response=self.whole | {"output": []})

    def start(self, kind: str, part: AnswerPart) -> Iterator[Object]:
        about: Object = {"summary": [], "content": []}
        if kind == "message":
            about = {"role": "assistant", "content": []}
        elif kind == "function_call":
            about = {"call_id": part.id, "name": part.name, "arguments": ""}
        name = f"{_KINDS[kind][0]}_{secrets.token_hex(12)}"
        item = {"id": name, "type": kind, **about, "status": "in_progress"}
        self.blocks.append(item)
        yield self._told(
            "response.output_item.added", output_index=len(self.blocks) - 1, item=dict(item)
        )
        if kind != "function_call":
            added = "response.content_part.added"
            yield self._told(added, **self._place(), part=_content(kind, ""))

    def more(self, kind: str, said: str) -> Iterator[Object]:
        more: Object = {"logprobs": []} if kind == "message" else {}
        yield self._told(f"{_KINDS[kind][1]}.delta", **self._place(), delta=said, **more)

    def stop(self) -> Iterator[Object]:
        if not self.blocks:
            return
        item = self.blocks[-1]
        item["status"], kind = self._status, item["type"]
        done = f"{_KINDS[kind][1]}.done"
        if kind == "function_call":
            item["arguments"] = self.written or "{}"
            yield self._told(done, **self._place(), arguments=item["arguments"], name=item["name"])
        else:
            content = _content(kind, self.written)
            item["content"] = [content]
            more: Object = {"logprobs": []} if kind == "message" else {}
            yield self._told(done, **self._place(), text=self.written, **more)
            yield self._told("response.content_part.done", **self._place(), part=content)
        yield self._told("response.output_item.done", output_index=len(self.blocks) - 1, item=item)

    def end(self, end: End, usage: Object, *, called: bool) -> Iterator[Object]:
        details = {"reason": "max_output_tokens"} if end.reason is Reason.LENGTH else None
        status = "completed" if end.reason is Reason.STOP else "incomplete"  # cut or aborted
        cut = not called and self.blocks and self.blocks[-1]["type"] == "function_call"
        self._status = "incomplete" if cut else status
        yield from self.stop()
        self.whole |= {"status": status, "incomplete_details": details, "usage": _usage(usage)}
        yield self._told(f"response.{status}", response=self.whole)

    def failed(self, error: Exception) -> Object:
        told = described(error)[1]["error"]
        return self._told("error", code=told["code"], message=told["message"], param=told["param"])

    def _told(self, kind: str, **fields: object) -> Object:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self) -> Object:
        """Which item is open, and of one with text which part."""
        item = self.blocks[-1]
        part = {} if item["type"] == "function_call" else {"content_index": 0}
        return {"item_id": item["id"], "output_index": len(self.blocks) - 1, **part}


# by type of an item: how its id begins, and its events of text
_KINDS = {
    "message": ("msg", "response.output_text"),
    "reasoning": ("rs", "response.reasoning_text"),
    "function_call": ("fc", "response.function_call_arguments"),
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
        "output_tokens_details": {
            "reasoning_tokens": told["completion_tokens_details"]["reasoning_tokens"]
        },
        "total_tokens": told["total_tokens"],
    }
