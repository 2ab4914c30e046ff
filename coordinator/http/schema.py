"""Request bodies: OpenAI's fields, vLLM's where OpenAI has none, and `speculation` of our own.

Types are checked here, values where the gRPC interface checks them, so that both give the same
errors. Known fields that are not supported and unknown fields are refused by name; labels without
effect are accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from dspark.errors import InvalidRequest, Unsupported

Form = dict[str, Any]  # `constraint` of a request


class AtFirst(FailFast):
    """Fails a list at its first wrong item, so that a long list of another kind does not collect an
    error for each of a million items."""

    def __hash__(self) -> int:  # members of a union need a hash
        return hash(self.fail_fast)


T = TypeVar("T")
Listed = Annotated[list[T], AtFirst()]  # every list of a body


class BodyPart(BaseModel):
    """A body or an object in it: types are strict, unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class JsonSchema(BodyPart):
    """OpenAI's `json_schema`. `strict` counts as true: what cannot be enforced is refused."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BodyPart):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag", "regex", "grammar"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BodyPart):
    """vLLM's `structured_outputs`: exactly one of the forms is given."""

    json_schema: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Listed[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    # vLLM's options of how JSON is written: accepted where they have no effect.
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class Function(BodyPart):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BodyPart):
    type: Literal["function"]
    function: Function


class Named(BodyPart):
    name: str


class Chosen(BodyPart):
    """A `tool_choice` that names the function to call."""

    type: Literal["function"]
    function: Named


Choice = Literal["none", "auto", "required"] | Chosen

# Known fields that are not supported, with their values that have no effect and are accepted.
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
# Fields that have no effect: labels for the client's own use.
_LABELS = {
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
}


class StreamOptions(BodyPart):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SpeculationFields(BodyPart):
    """How the answer is sped up; never changes its distribution."""

    policy: str = ""
    rule: Literal["", "token", "block", "coupled"] = ""
    weight: float | None = None
    drafter: str = ""
    label: str = ""


class SharedFields(BodyPart):
    """Fields that the bodies of all interfaces share; None takes the deployment's default.

    idle: values without effect, by known field that is not supported; 1 does not count as `true`.
    labels: fields without effect. stored: fields that need storage between requests.
    """

    model_config = ConfigDict(extra="allow")
    idle: ClassVar[Mapping[str, tuple[Any, ...]]]
    labels: ClassVar[Collection[str]] = ()
    stored: ClassVar[Collection[str]] = ()

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    # vLLM's names.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    stop_token_ids: Listed[int] | None = None
    cache_salt: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # Ours.
    speculation: SpeculationFields | None = None

    @model_validator(mode="after")
    def _known(self) -> Self:
        """Raises Unsupported for fields beside the body's own, unless they have no effect."""
        for name, value in (self.model_extra or {}).items():
            nothing = (
                value == each and type(value) is type(each) for each in self.idle.get(name, ())
            )
            if value is None or any(nothing) or name in self.labels:
                continue
            if name in self.stored:
                raise Unsupported(name, "is not supported: nothing is kept between requests")
            raise Unsupported(
                name[:100],
                "is not supported" if name in self.idle else "is not a field of this request",
            )
        return self


class Body(SharedFields):
    """Fields that OpenAI's chat and text completions share."""

    idle = _IDLE
    labels = _LABELS

    n: int | None = None
    stream_options: StreamOptions | None = None
    stop: str | Listed[str] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    max_tokens: int | None = None
    response_format: ResponseFormat | None = None
    # vLLM's names.
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    return_token_ids: bool | None = None
    prompt_logprobs: int | None = None
    per_request_spec_decode_metrics: Literal["none", "summary", "detailed"] | None = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options", "only beside stream")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("prompt_logprobs", "not beside stream")
        return self


def form_of(body: Body) -> tuple[str, Form | None]:
    """(the field that asks for a form, the form or None). Raises InvalidRequest for two forms."""
    one, other = _of_format(body.response_format), _of_outputs(body.structured_outputs)
    if one is not None and other is not None:
        raise InvalidRequest("structured_outputs", "not beside response_format")
    return ("response_format", one) if other is None else ("structured_outputs", other)


def _of_format(asked: ResponseFormat | None) -> Form | None:
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return {"json_object": True}
    if asked.type != "json_schema":
        raise Unsupported(
            "response_format.type", f"{asked.type!r} is not supported; structured_outputs has it"
        )
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        raise InvalidRequest("response_format.json_schema.schema", "field required")
    return {"json_schema": asked.json_schema.schema_}


_UNKEPT = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def _of_outputs(structured: StructuredOutputs | None) -> Form | None:
    if structured is None:
        return None
    for name in _UNKEPT:
        if getattr(structured, name):
            raise Unsupported(f"structured_outputs.{name}", "is not supported")
    form: Form = structured.model_dump(exclude_none=True, exclude={"disable_fallback", *_UNKEPT})
    if form.get("json_object") is False:
        del form["json_object"]
    if len(form) != 1:
        raise InvalidRequest(
            "structured_outputs",
            "give one of json, regex, choice, grammar, json_object, structural_tag",
        )
    return form


class CompletionBody(Body):
    """Body of /v1/completions."""

    prompt: str | Listed[str] | Listed[int] | Listed[Listed[int]]
    logprobs: int | None = None
    echo: bool | None = None


class PromptFields(BodyPart):
    """What a chat's prompt depends on beside its messages."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Listed[Tool] | None = None
    tool_choice: Choice | None = None
    # Shorthands for the chat template's arguments of these names.
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None


class ChatBody(PromptFields, Body):
    """Body of /v1/chat/completions. Messages are passed to the chat template; their content must be
    text."""

    messages: Listed[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    thinking_token_budget: int | None = None
