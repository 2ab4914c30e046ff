"""/v1/messages: Anthropic's Messages, translated to chat completions and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from coordinator.answers.answer import End, Reason
from coordinator.dialects.telling import (
    CommonFields,
    EventWriter,
    Translated,
    answer_chat,
    ours,
    translated_chat,
)
from coordinator.http.api import Api
from coordinator.http.body import described_by
from coordinator.http.errors import as_message, described
from coordinator.http.reader import AnswerPart
from coordinator.http.reply import Object
from coordinator.http.schema import BodyPart, Listed
from coordinator.http.template import ChatTemplate, joined_texts, read_arguments, string
from dspark.errors import InvalidRequest, Unsupported

_TEXT = {"text": "text"}
# Known fields that need storage or are not supported, with their values that have no effect.
_IDLE: dict[str, tuple[Any, ...]] = {
    "container": (),
    "context_management": (
        {},
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    ),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "output_format": (),
    "speed": ("standard",),
    "thread": (),
    "user_profile_id": (),
    "workspace_id": (),
}
_NAMES = (
    (r"stop$", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    (r"tools\[(\d+)\]\.function\.parameters", r"tools[\1].input_schema"),
    (r"tools\[(\d+)\]\.function", r"tools[\1]"),
    (r"tool_choice\.function", "tool_choice"),
    ("continue_final_message", "messages"),
)
_BUDGET = ("thinking_token_budget", "thinking.budget_tokens")  # unless the body has the former


class MessagesTool(BodyPart):
    """A tool that the client runs. Its options of caching and streaming have no effect here."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(BodyPart):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesFormat(BodyPart):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BodyPart):
    format: MessagesFormat | None = None
    effort: str | None = None


class Thinking(BodyPart):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesBody(CommonFields):
    """Body of /v1/messages."""

    idle = _IDLE
    stored = ("container", "thread")

    messages: Listed[dict[str, Any]]
    max_tokens: int
    system: str | Listed[dict[str, Any]] | None = None
    stop_sequences: Listed[str] | None = None
    tools: Listed[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    # Fields without effect.
    metadata: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None


class CountBody(MessagesBody):
    """Body of /v1/messages/count_tokens."""

    max_tokens: int = 1


def translated(body: MessagesBody, template: ChatTemplate | None) -> Translated:
    """The body as a body of chat. template: the target's. Raises InvalidRequest naming a field of
    the body."""
    made: list[tuple[Object, str]] = []
    if body.system:
        said = joined_texts(body.system, "system", _TEXT)
        made.append(({"role": "system", "content": said}, "system"))
    for index, message in enumerate(body.messages):
        made += _messages(message, f"messages[{index}]")
    messages = [each for each, _ in made]
    fields: Object = {
        "messages": messages,
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "tools": [_tool(tool) for tool in body.tools] if body.tools else None,
        **_choice(body.tool_choice),
        **_output(body.output_config),
        **_thinking(body.thinking, template),
        **ours(body),
    }
    if messages and messages[-1]["role"] == "assistant":  # the answer continues it
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    names = _NAMES if body.thinking_token_budget is not None else (*_NAMES, _BUDGET)
    return Translated(fields, [place for _, place in made], names)


def _messages(message: Object, field: str) -> list[tuple[Object, str]]:
    """One message as chat messages with their fields: each tool result is a message of its own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise InvalidRequest(f"{field}.role", "must be user, assistant or system")
    if isinstance(content, str):
        return [({"role": role, "content": content}, f"{field}.content")]
    if not isinstance(content, list):
        raise InvalidRequest(f"{field}.content", "must be a string or a list of blocks")
    turn: Object = {"role": role}
    texts: list[str] = []
    made: list[tuple[Object, str]] = []
    for index, block in enumerate(content):
        at = f"{field}.content[{index}]"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(string(block, "text", at))
        elif kind == "tool_result" and role == "user":
            said = block.get("content") or ""
            answer = {
                "tool_call_id": string(block, "tool_use_id", at),
                "content": joined_texts(said, f"{at}.content", _TEXT),
            }
            made.append(({"role": "tool", **answer}, at))
        elif kind == "tool_use" and role == "assistant":
            function = {"name": string(block, "name", at), "arguments": block.get("input", {})}
            # checked here, as chat would not name this field
            read_arguments(function["arguments"], f"{at}.input")
            call = {"id": string(block, "id", at), "type": "function", "function": function}
            turn.setdefault("tool_calls", []).append(call)
        elif kind == "thinking" and role == "assistant":
            thought = string(block, "thinking", at)
            turn["reasoning_content"] = turn.get("reasoning_content", "") + thought
        elif isinstance(kind, str):
            raise Unsupported(
                f"{at}.type", f"{kind[:100]!r} is not supported in a turn of the {role}"
            )
        else:
            raise InvalidRequest(at, "must be a block with a type")
    if texts or len(turn) > 1 or not made:
        text = "\n".join(texts) or (None if len(turn) > 1 else "")
        made.append((turn | {"content": text}, field))
    return made


def _tool(tool: MessagesTool) -> Object:
    function = tool.model_dump(include={"name", "description", "strict"}, exclude_none=True)
    return {"type": "function", "function": function | {"parameters": tool.input_schema}}


def _choice(choice: ToolChoice | None) -> Object:
    if choice is None:
        return {}
    named = {"type": "function", "function": {"name": choice.name}}
    if choice.type == "tool" and choice.name is None:
        raise InvalidRequest("tool_choice.name", "field required")
    kinds: dict[str, Any] = {"auto": "auto", "none": "none", "any": "required", "tool": named}
    alone = choice.disable_parallel_tool_use
    parallel = None if alone is None else not alone
    return {"tool_choice": kinds[choice.type], "parallel_tool_calls": parallel}


def _output(config: OutputConfig | None) -> Object:
    if config is None:
        return {}
    form = config.format and {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": config.format.schema_},
    }
    return {"response_format": form, "reasoning_effort": config.effort}


def _thinking(asked: Thinking | None, template: ChatTemplate | None) -> Object:
    """Chat's fields for `thinking`; without an argument of the template the target decides. A
    target without thoughts keeps any budget."""
    if asked is None or template is None:
        return {}
    thinks = template.marks_thoughts or template.has_channels
    fields: Object = {"thinking_token_budget": asked.budget_tokens if thinks else None}
    if "enable_thinking" in template.arguments:
        fields["enable_thinking"] = asked.type != "disabled"
    return fields


def arguments_of(written: str) -> Any:
    """The arguments of a call, parsed; the text itself where it is no JSON that can be sent on."""
    try:
        made = json.loads(written or "{}", strict=False)
        json.dumps(made, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return written
    return made


def routes(api: Api) -> APIRouter:
    router = APIRouter(tags=["Anthropic"], dependencies=[Depends(api.guard)])

    @router.post("/v1/messages", openapi_extra=described_by(MessagesBody))
    async def messages(request: Request) -> Response:
        """Answers a conversation."""
        body = await api.read(request, MessagesBody)
        chat = translated(body, api.template)
        return await answer_chat(api, request, chat, MessageWriter, kind="msg")

    @router.post("/v1/messages/count_tokens", openapi_extra=described_by(CountBody))
    async def count(request: Request) -> Response:
        """Counts the tokens of a conversation's prompt."""
        body = await api.read(request, CountBody)
        api.check_model(body.model, api.processor.cell.terms())
        _, chat = await translated_chat(api, translated(body, api.template))
        return JSONResponse({"input_tokens": len(chat.prompt)})

    return router


class MessageWriter(EventWriter):
    """Writer of a `message` and its events, block by block."""

    kinds = ("thinking", "text", "tool_use")

    def __init__(self, name: str, model: str) -> None:
        self.whole = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
        }
        self.blocks = self.whole["content"]

    def begin(self, usage: Object) -> Iterator[Object]:
        whole = self.whole | {"content": [], "usage": _usage(usage)}
        yield {"type": "message_start", "message": whole}

    def start(self, kind: str, part: AnswerPart) -> Iterator[Object]:
        if kind == "tool_use":
            block: Object = {"type": kind, "id": part.id, "name": part.name, "input": {}}
        else:
            block = {"type": kind, kind: "", **({"signature": ""} if part.reasoning else {})}
        self.blocks.append(dict(block))
        yield self._told("start", content_block=block)

    def more(self, kind: str, said: str) -> Iterator[Object]:
        called = kind == "tool_use"
        delta, key = ("input_json_delta", "partial_json") if called else (f"{kind}_delta", kind)
        yield self._told("delta", delta={"type": delta, key: said})

    def stop(self) -> Iterator[Object]:
        if not self.blocks:
            return
        block = self.blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = arguments_of(self.written)
        else:
            block[block["type"]] = self.written
        yield self._told("stop")

    def end(self, end: End, usage: Object, *, called: bool) -> Iterator[Object]:
        yield from self.stop()
        stopped, told = _stopped(end, called), _usage(usage)
        self.whole |= {**stopped, "usage": told}
        yield {"type": "message_delta", "delta": stopped, "usage": told}
        yield {"type": "message_stop"}

    def failed(self, error: Exception) -> Object:
        status, told, _ = described(error)
        return as_message(status, told)

    def _told(self, what: str, **fields: object) -> Object:
        return {"type": f"content_block_{what}", "index": len(self.blocks) - 1, **fields}


def _usage(told: Object) -> Object:
    cached = told["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": told["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": told["completion_tokens"],
        "output_tokens_details": {
            "thinking_tokens": told["completion_tokens_details"]["reasoning_tokens"]
        },
    }


def _stopped(end: End, called: bool) -> dict[str, Any]:
    stop = "tool_use" if called else "end_turn"
    reasons = {
        Reason.STOP: stop if end.text is None else "stop_sequence",
        Reason.LENGTH: "max_tokens",
        Reason.ABORT: None,  # for which the interface has no word
    }
    # the details are of refusals, and clients take them from every end
    return {
        "stop_reason": reasons[end.reason],
        "stop_sequence": end.text,
        "stop_details": None,
    }
