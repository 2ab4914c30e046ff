"""Bodies of requests: OpenAI's fields, vLLM's names for what OpenAI does not have, and `speculation` of our own.

Types are checked here, values where the gRPC interface checks them, so that both refuse in the same words. What is
understood and not built is refused by name, and so is what nobody knows; labels that change nothing are let through.
"""

from __future__ import annotations

import asyncio
import functools
import typing
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from coordinator.http.forms import BodyPart, ResponseFormat, StructuredOutputs
from coordinator.http.tools import Choice, Tool
from dspark.errors import InvalidRequest, RequestCancelled, Unsupported

# Values that ask for nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "detokenize": (True,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "priority": (0,),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# Labels for the client's own books.
_LABELS = {
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
}


class StreamOptions(BodyPart):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class SpeculationFields(BodyPart):
    """How the answer is sped up; never changes its distribution."""

    policy: str = ""
    rule: Literal["", "token", "block", "coupled"] = ""
    weight: float | None = None
    drafter: str = ""
    label: str = ""


class SharedFields(BodyPart):
    """What every interface here has beside its own; None takes the deployment's default."""

    seed: int | None = None
    # vLLM's names.
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # Ours.
    speculation: SpeculationFields | None = None


class Body(SharedFields):
    """What both kinds of requests share."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    response_format: ResponseFormat | None = None
    # vLLM's names.
    top_k: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] | None = None

    @model_validator(mode="after")
    def _taken(self) -> Self:
        check_beyond(self, _IDLE, labels=_LABELS)
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "only beside stream")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs", "not beside stream")
        return self


def check_beyond(
    body: BaseModel,
    idle: Mapping[str, tuple[Any, ...]],
    *,
    labels: Collection[str] = (),
    stored: Collection[str] = (),
) -> None:
    """Raises Unsupported for what is asked for beside the body's own fields. idle: values that ask for nothing; `true`
    is not 1. labels: what is nothing to anybody here. stored: what would have to be kept."""
    for name, value in (body.model_extra or {}).items():
        nothing = (value == each and type(value) is type(each) for each in idle.get(name, ()))
        if value is None or any(nothing) or name in labels:
            continue
        if name in stored:
            raise Unsupported(name, "is not supported: nothing is kept between requests")
        raise Unsupported(name[:100], "is not supported" if name in idle else "is not a field of this request")


M = TypeVar("M", bound=BaseModel)


def validated(kind: type[M], content: bytes) -> M:
    """A body from JSON; InvalidRequest names the field."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        paths = [_path(kind, each) for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
        # Of alternatives the one that was gone into.
        at = max(range(len(paths)), key=lambda place: paths[place].count("."))
        field, problem = paths[at], str(errors[at]["msg"])
        raise InvalidRequest(field or "body", problem[:1].lower() + problem[1:300]) from None


class AtFirst(FailFast):
    """A long list of another kind is refused at its first item, not complained of at each of a million."""

    def __hash__(self) -> int:  # members of a union need one
        return hash(self.fail_fast)


class CompletionBody(Body):
    """Of /v1/completions."""

    prompt: (
        str | Annotated[list[str], AtFirst()] | Annotated[list[int], AtFirst()] | Annotated[list[list[int]], AtFirst()]
    )
    logprobs: int | None = None
    echo: bool | None = None


class ChatBody(Body):
    """Of /v1/chat/completions. Messages are the template's business; only text is understood in their content."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    thinking_token_budget: int | None = None
    # Shorthands for the keyword arguments of these names.
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


def _path(kind: type[BaseModel], error: ErrorDetails) -> str:
    """`messages[0]` of the place where something is wrong, without the names of the alternatives that were tried."""
    words, loc = "", error["loc"]
    for index, part in enumerate(loc):
        unknown = error["type"] == "extra_forbidden" and index == len(loc) - 1
        if isinstance(part, int):
            words += f"[{part}]"
        elif index == 0 or unknown or part in _fields(kind):
            words += f".{part}" if words else part
    return words


@functools.cache
def _fields(kind: type[BaseModel]) -> frozenset[str]:
    """Names of its fields, and of all that are inside them."""
    names = {field.alias or name for name, field in kind.model_fields.items()}
    waiting = [field.annotation for field in kind.model_fields.values()]
    while waiting:
        each = waiting.pop()
        waiting += typing.get_args(each)
        if isinstance(each, type) and issubclass(each, BaseModel):
            names |= _fields(each)
    return frozenset(names)


READ_S = 30.0


async def read_body(request: Request, kind: type[M], most: int) -> M:
    """The body as `kind`, of `most` bytes; errors name what is wrong."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A browser sends JSON to another origin only after asking, so pages from elsewhere cannot post here.
    if media != "application/json":
        raise HTTPException(415, f"content-type: {media[:100] or 'none'} is not application/json")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    content = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            async for part in request.stream():
                content += part
                if len(content) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {READ_S:g} s") from None
    except ClientDisconnect:
        raise RequestCancelled("the client went away") from None
    return validated(kind, bytes(content))


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {most} bytes")


def described_by(kind: type[BaseModel]) -> dict[str, Any]:
    """What FastAPI adds to a route that takes a body of this kind."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    # Parts stand where they are used, so that routes need no shared components.
    parts = schema.pop("$defs", {})
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inlined(schema, parts)}}}}


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(parts[str(node["$ref"]).rsplit("/", 1)[-1]], parts)
        return {key: _inlined(value, parts) for key, value in node.items()}
    if isinstance(node, list):
        return [_inlined(value, parts) for value in node]
    return node
