"""The form that an answer is asked to have, in OpenAI's words and in vLLM's, as the gRPC interface says it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dspark.errors import InvalidRequest, Unsupported

Form = dict[str, Any]  # `constraint` of a request


class BodyPart(BaseModel):
    """What a body is made of. Fields that nobody knows are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class JsonSchema(BodyPart):
    """`strict` is as it were true: what cannot be kept is refused."""

    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BodyPart):
    """OpenAI's."""

    type: Literal["text", "json_object", "json_schema", "structural_tag", "regex", "grammar"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BodyPart):
    """vLLM's: one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    # How another engine writes JSON; what asks for nothing.
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


def form_of(asked: ResponseFormat | None, structured: StructuredOutputs | None) -> tuple[str, Form | None]:
    """(the field that says so, the form)."""
    one, other = _of_format(asked), _of_outputs(structured)
    if one is not None and other is not None:
        raise InvalidRequest("structured_outputs", "not beside response_format")
    return ("response_format", one) if other is None else ("structured_outputs", other)


def _of_format(asked: ResponseFormat | None) -> Form | None:
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return {"json_object": True}
    if asked.type != "json_schema":
        raise Unsupported("response_format.type", f"{asked.type!r} is not supported; structured_outputs has it")
    if asked.json_schema is None or asked.json_schema.schema_ is None:
        raise InvalidRequest("response_format.json_schema.schema", "field required")
    return {"json_schema": asked.json_schema.schema_}


def _of_outputs(structured: StructuredOutputs | None) -> Form | None:
    if structured is None:
        return None
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if getattr(structured, name):
            raise Unsupported(f"structured_outputs.{name}", "is not supported")
    given: Form = {
        "json_schema": structured.json_,
        "regex": structured.regex,
        "choice": structured.choice,
        "grammar": structured.grammar,
        "json_object": structured.json_object or None,
        "structural_tag": structured.structural_tag,
    }
    form = {name: value for name, value in given.items() if value is not None}
    if len(form) != 1:
        raise InvalidRequest("structured_outputs", "give one of json, regex, choice, grammar, json_object")
    return form
