"""Tools of a request: what may be called, how the target writes a call, and the form that holds it to that.

How a call is written is read off the target's own chat template, by what it makes of a call in a conversation. A call
that is forced, or whose tool is `strict`, has its arguments kept by a form; any other is written freely and read as it
stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from coordinator.http.template import ChatTemplate
from dspark.errors import InvalidRequest, Unsupported

MAX_TOOLS = 128
SPACES = 4  # of white space between two parts of a call's arguments
NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PROBE = "Kd4vTx9m"  # a name that no template writes by itself


class _ToolPart(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class Function(_ToolPart):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_ToolPart):
    type: Literal["function"]
    function: Function


class Named(_ToolPart):
    name: str


class Chosen(_ToolPart):
    """A tool that is to be called."""

    type: Literal["function"]
    function: Named


Choice = Literal["none", "auto", "required"] | Chosen


@dataclass(frozen=True, slots=True)
class Format:
    """How calls are written: `begin`, the name, `middle`, the arguments as JSON, `end`.

    parameters: what the key of the arguments is called; empty where the name stands before them and is none of the
    JSON. many: whether an answer may hold several calls. marked: `trigger` is no part of the JSON; where it is, a call
    is the whole answer. around: what may stand around calls, and is no text. parted: between calls of one list.
    short_ids: names of calls have nine letters.
    """

    name: str
    begin: str
    middle: str
    end: str
    trigger: str  # what announces a call in the middle of a text
    close: str  # what follows the JSON of a call
    parameters: str
    many: bool
    marked: bool = True
    around: tuple[str, ...] = ()
    parted: str = ""
    short_ids: bool = False


FORMATS = {
    each.name: each
    for each in (
        Format(
            "hermes",
            '<tool_call>\n{"name": "',
            '", "arguments": ',
            "}\n</tool_call>",
            trigger="<tool_call>",
            close="</tool_call>",
            parameters="arguments",
            many=True,
        ),
        Format(
            "llama_json",
            '{"name": "',
            '", "parameters": ',
            "}",
            trigger='{"name":',
            close="",
            parameters="parameters",
            many=False,
            marked=False,
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Calling:
    """What one request may call."""

    tools: Sequence[dict[str, Any]]  # as the template takes them
    form: dict[str, Any] | None  # `constraint` of the request, where calls are forced or strict
    format: Format


def format_of(template: ChatTemplate, named: str = "") -> Format | None:
    """How the target writes calls: the named way, or what its template makes of one; None where it makes nothing."""
    if named:
        return FORMATS[named]
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": _PROBE, "arguments": {"a": 1}}}
    for content in ("", None):
        said = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            text = template.render([{"role": "user", "content": "u"}, said], {}, add_generation_prompt=False)
        except InvalidRequest:
            continue
        for each in FORMATS.values():
            if re.search(re.escape(each.trigger.split(":")[0]) + r"[^<>]*" + _PROBE, text) and each.parameters in text:
                return each
    return None


def read_tools(
    tools: Sequence[Tool] | None, choice: Choice | None, parallel: bool | None, template: ChatTemplate, named: str = ""
) -> Calling | None:
    """What may be called; None where nothing may. named: a format to use in place of the template's own."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice", "names a call, and there are no tools")
        return None
    _check(tools)
    if choice == "none":
        return None
    form = format_of(template, named)
    if form is None or not template.shows_tools:
        raise Unsupported("tools", "the target's chat template shows no tools, or writes calls in no way known here")
    written = [tool.model_dump(exclude_none=True) for tool in tools]
    return Calling(written, _form(tools, choice, parallel is not False and form.many, form), form)


def _check(tools: Sequence[Tool]) -> None:
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest("tools", f"{len(tools)} tools, at most {MAX_TOOLS} are allowed")
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if not NAME.fullmatch(name):
            raise InvalidRequest(f"tools[{index}].function.name", "must have 1 to 64 letters, digits, _, - and .")
        if name in names[:index]:
            raise InvalidRequest(f"tools[{index}].function.name", f"{name!r} stands twice")


def _form(tools: Sequence[Tool], choice: Choice | None, many: bool, form: Format) -> dict[str, Any] | None:
    chosen = list(tools)
    if isinstance(choice, Chosen):
        chosen = [tool for tool in tools if tool.function.name == choice.function.name]
        if not chosen:
            raise InvalidRequest("tool_choice.function.name", f"{choice.function.name[:64]!r} is none of the tools")
        many = False
    forced = isinstance(choice, Chosen) or choice == "required"
    if not forced and many == form.many and not any(tool.function.strict for tool in tools):
        return None
    tags = [_tag(tool.function, form, strict=forced or bool(tool.function.strict)) for tool in chosen]
    inside: dict[str, Any] = {"tags": tags, "at_least_one": forced, "stop_after_first": not many}
    if forced:
        inside |= {"type": "tags_with_separator", "separator": "\n"}
    else:
        inside |= {"type": "triggered_tags", "triggers": [form.trigger]}
    return {"structural_tag": {"type": "structural_tag", "format": inside}}


def _tag(function: Function, form: Format, *, strict: bool) -> dict[str, Any]:
    schema = (function.parameters or {"type": "object", "properties": {}}) if strict else {"type": "object"}
    if not strict:
        schema = {**schema, "additionalProperties": True}
    begin = form.begin + json.dumps(function.name)[1:-1] + form.middle
    arguments = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": SPACES}
    return {"type": "tag", "begin": begin, "content": arguments, "end": form.end}
