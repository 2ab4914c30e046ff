"""Bodies of requests: OpenAI's fields, vLLM's names for what OpenAI does not have, and `speculation` of our own.

Types are checked here, values where the gRPC interface checks them, so that both refuse in the same words. What is
understood and not built is refused by name, and so is what nobody knows; labels that change nothing are let through.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError

from dspark.errors import InvalidRequest, Unsupported

T = TypeVar("T", bound="Body")

# Values that ask for nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "allowed_token_ids": ([],),
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
    "parallel_tool_calls": (True, False),
    "priority": (0,),
    "response_format": ({"type": "text"},),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
}
# Labels for the client's own books.
_LABELS = {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user"}


_PARTS = {"stream_options", "speculation"}  # fields with fields of their own


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(_Part):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class Speculation(_Part):
    """How the answer is sped up; never changes its law."""

    policy: str = ""
    rule: Literal["", "token", "block", "coupled"] = ""
    weight: float | None = None
    drafter: str = ""
    label: str = ""


class Body(BaseModel):
    """What both kinds of requests share; None takes the deployment's default."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    # vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    cache_salt: str | None = None
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] | None = None
    # Ours.
    speculation: Speculation | None = None

    @classmethod
    def read(cls: type[T], content: bytes) -> T:
        """A body from JSON; InvalidRequest names the field."""
        body = validated(cls, content)
        for name, value in (body.model_extra or {}).items():
            if value is not None and name not in _LABELS and not _is_idle(name, value):
                raise Unsupported(name[:100], "is not supported" if name in _IDLE else "is not a field of this request")
        if body.stream_options is not None and not body.stream:
            raise InvalidRequest("stream_options", "only beside stream")
        if body.prompt_logprobs is not None and body.stream:
            raise InvalidRequest("prompt_logprobs", "not beside stream")
        return body


def _is_idle(name: str, value: Any) -> bool:
    """Whether a value asks for nothing; `true` is not 1."""
    return any(value == idle and type(value) is type(idle) for idle in _IDLE.get(name, ()))


M = TypeVar("M", bound=BaseModel)


def validated(kind: type[M], content: bytes) -> M:
    """A body from JSON, its types checked; InvalidRequest names the field."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field, problem = _path(first["loc"]), str(first["msg"])
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
    # Shorthands for the keyword arguments of these names.
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0]` of the place where something is wrong, without the names of the alternatives that were tried."""
    words = ""
    for index, part in enumerate(loc):
        if isinstance(part, int):
            words += f"[{part}]"
        elif index == 0 or loc[0] in _PARTS:
            words += f".{part}" if words else part
    return words
