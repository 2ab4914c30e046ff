"""Tools of a request: which may be called, the target's format of calls, and the form that enforces
it.

The format is found by rendering a probe call with the target's own chat template. A call that is
forced, or whose tool is `strict`, has its arguments enforced by a form; any other is generated
freely and parsed as it stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.http.api import Api
from coordinator.http.schema import ChatBody, Choice, Chosen, Form, Function, Tool, form_of
from coordinator.http.template import CALLED, CALLS, USER, ChatTemplate
from coordinator.requests.validation import check_count
from dspark.errors import InvalidRequest, Unsupported

MAX_TOOLS = 128
SPACES = 4  # most white space between two parts of a call's arguments, in characters
FORM_SPACES = 16  # the same for an answer's JSON
NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
ANY_OBJECT = {"type": "object", "additionalProperties": True}

Shape = dict[str, Any]  # a part of a structural tag


@dataclass(frozen=True, slots=True)
class Format:
    """How calls are written: `begin`, the name, `middle`, the arguments as JSON, `end`; all calls
    are between `opening` and `closing`, joined by `separator`.

    trigger: text that starts a call within an answer.
    parameters: the key of the arguments; empty where the name precedes them and is not in the JSON.
    many: an answer may hold several calls. marked: `trigger` is not part of the JSON; where it is,
    a call is the whole answer. around: marks around calls that are not answer text. short_ids: ids
    of calls have nine characters. free: a call within text is recognised by how it begins.
    """

    begin: str
    middle: str
    end: str
    trigger: str
    parameters: str = ""
    opening: str = ""
    closing: str = ""
    separator: str = "\n"
    many: bool = True
    marked: bool = True
    around: tuple[str, ...] = ()
    short_ids: bool = False
    free: bool = True

    @property
    def close(self) -> str:
        """Text behind the JSON of a call, or of a list of calls."""
        return self.end.removeprefix("}").strip() or self.closing

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks in the text of an answer that are not part of it."""
        return (self.trigger, self.middle.strip(), self.close, *self.around) if self.marked else ()


_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
FORMATS = {
    "hermes": Format(
        '<tool_call>\n{"name": "',
        '", "arguments": ',
        "}\n</tool_call>",
        trigger="<tool_call>",
        parameters="arguments",
    ),
    "llama_json": Format(
        '{"name": "',
        '", "parameters": ',
        "}",
        trigger='{"name":',
        parameters="parameters",
        many=False,
        marked=False,
    ),
    "mistral": Format(
        '{"name": "',
        '", "arguments": ',
        "}",
        trigger="[TOOL_CALLS]",
        parameters="arguments",
        opening="[TOOL_CALLS] [",
        closing="]",
        separator=", ",
        short_ids=True,
    ),
    "mistral_named": Format(
        "[TOOL_CALLS]",
        "[ARGS]",
        "",
        trigger="[TOOL_CALLS]",
        separator="",
        short_ids=True,
    ),
    "deepseek": Format(
        f"{_CALL[0]}function{_CALL[1]}",
        "\n```json\n",
        f"\n```{_CALL[2]}",
        trigger=f"{_CALL[0]}function{_CALL[1]}",
        opening=_CALLS[0],
        closing=_CALLS[1],
        around=_CALLS,
    ),
    "deepseek_named": Format(
        _CALL[0],
        _CALL[1],
        _CALL[2],
        trigger=_CALL[0],
        opening=_CALLS[0],
        closing=_CALLS[1],
        separator="",
        around=_CALLS,
    ),
    "gpt_oss": Format(
        "<|channel|>commentary to=functions.",
        " <|constrain|>json<|message|>",
        "",
        trigger="<|channel|>",
        many=False,
        free=False,
    ),
}


@dataclass(frozen=True, slots=True)
class Calling:
    """The tools that one request may call, and how the target calls them."""

    tools: Sequence[dict[str, Any]]  # as the template takes them
    form: dict[str, Any] | None  # `constraint` of the request, where calls are forced or strict
    format: Format
    whole: bool  # the form covers the whole answer
    field: str  # the request's field that the form was made of


def format_of(template: ChatTemplate, named: str = "") -> Format | None:
    """The target's format of calls: the one named, or the one its template writes; None where it
    writes none that is known."""
    if named:
        return FORMATS[named]
    for content in ("", None):
        try:
            text = template.render(
                [USER, {**CALLS, "content": content}], {}, add_generation_prompt=False
            )
        except InvalidRequest:
            continue
        for each in FORMATS.values():
            if _writes(each, text):
                return each
    return None


def _writes(form: Format, text: str) -> bool:
    """Whether the probe call in `text`, rendered by a template, has this format."""
    if not form.free:  # the name may precede its channel
        return f" to=functions.{CALLED}" in text
    if not form.parameters:
        begin, middle = re.escape(form.begin), re.escape(form.middle.strip())
        return re.search(rf"{begin}\s?{CALLED}\s*{middle}", text) is not None
    begin = re.escape((form.opening or form.trigger).split(":")[0]).replace(r"\ ", r"\s*")
    return form.parameters in text and re.search(rf"{begin}[^<>]*{CALLED}", text) is not None


def read_calling(api: Api, body: ChatBody) -> Calling | None:
    """The tools that a body allows, in the target's format; None where it allows no call. Raises
    InvalidRequest."""
    tools, choice = body.tools, body.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice", "names a call, and there are no tools")
        return None
    if api.template is None:
        raise Unsupported("tools", "the target has no chat template")
    _check(tools)
    if choice == "none":
        return None
    template = api.template.for_tools
    form = format_of(template, api.config.tool_format)
    if form is None or not template.shows_tools:
        raise Unsupported(
            "tools",
            "the target's chat template shows no tools, or writes calls in no way known here",
        )
    tokenizer = api.processor.tokenizer
    special = tokenizer.special_ids if tokenizer is not None else {}
    field, asked = form_of(body)
    answer = None if asked is None else part_of(asked, field)
    many = body.parallel_tool_calls is not False and form.many
    made = _form(tools, choice, many, form, special, answer, field)
    if _forces(choice) or answer is None:
        field = "tools"
    elif any(tool.function.strict for tool in tools):
        field = f"{field} or tools"
    written = [tool.model_dump(exclude_none=True) for tool in tools]
    return Calling(written, made, form, _forces(choice) or answer is not None, field)


def _check(tools: Sequence[Tool]) -> None:
    check_count("tools", len(tools), MAX_TOOLS, "tools")
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if not NAME.fullmatch(name):
            raise InvalidRequest(
                f"tools[{index}].function.name", "must have 1 to 128 letters, digits, _, - and ."
            )
        if name in names[:index]:
            raise InvalidRequest(f"tools[{index}].function.name", f"{name!r} stands twice")


def _forces(choice: Choice | None) -> bool:
    """Whether the answer has to be a call."""
    return isinstance(choice, Chosen) or choice == "required"


def _form(
    tools: Sequence[Tool],
    choice: Choice | None,
    many: bool,
    form: Format,
    special: Mapping[str, int],
    answer: Shape | None = None,
    field: str = "response_format",
) -> dict[str, Any] | None:
    chosen = list(tools)
    if isinstance(choice, Chosen):
        chosen = [tool for tool in tools if tool.function.name == choice.function.name]
        if not chosen:
            raise InvalidRequest(
                "tool_choice.function.name", f"{choice.function.name[:128]!r} is none of the tools"
            )
        many = False
    forced = _forces(choice)
    if not forced and answer is not None and not (form.marked and form.free):
        raise Unsupported(field, "is not supported beside tools: the target marks no calls")
    strict = any(tool.function.strict for tool in tools)
    if not (forced or strict or answer is not None or many != form.many):
        return None
    if not forced and not form.free:
        raise Unsupported(
            "tools",
            "calls of the target can be held to a schema (strict) only where they are forced",
        )
    calls = [
        [
            *spelled(form.begin + json.dumps(tool.function.name)[1:-1] + form.middle, special),
            _arguments(tool.function, strict=forced or bool(tool.function.strict)),
            *spelled(form.end, special),
        ]
        for tool in chosen
    ]
    several = _several(calls, form, special, many)
    if forced:
        inside = _sequence(several)
    elif answer is not None:
        inside = {"type": "or", "elements": [_sequence(several), answer]}
    elif form.opening:
        inside = _triggered([several], form.opening, many=False)
    else:
        inside = _triggered(calls, form.trigger, many)
    return {"structural_tag": {"type": "structural_tag", "format": inside}}


def _several(
    calls: list[list[Shape]], form: Format, special: Mapping[str, int], many: bool
) -> list[Shape]:
    """Parts of a tag for one of the calls, or several if `many`, with the text around all."""
    one = {"type": "or", "elements": [_sequence(call) for call in calls]}
    more = {"type": "star", "content": _sequence([*spelled(form.separator, special), one])}
    return [
        *spelled(form.opening, special),
        one,
        *([more] if many else ()),
        *spelled(form.closing, special),
    ]


def _triggered(calls: list[list[Shape]], trigger: str, many: bool) -> Shape:
    """A part of a tag for free text in which a call, once begun, is held to its form."""
    tags, of_token = [], calls[0][0]["type"] == "token"
    for first, *rest in calls:
        begin = first if of_token else first["value"]
        last = rest.pop() if rest[-1]["type"] in ("token", "const_string") else None
        end = "" if last is None else last if last["type"] == "token" else last["value"]
        tags.append({"type": "tag", "begin": begin, "content": _sequence(rest), "end": end})
    common = {"tags": tags, "at_least_one": False, "stop_after_first": not many}
    if of_token:
        return {"type": "token_triggered_tags", "trigger_tokens": [calls[0][0]["token"]], **common}
    return {"type": "triggered_tags", "triggers": [trigger], **common}


def _arguments(function: Function, *, strict: bool) -> Shape:
    schema = function.parameters or {"type": "object", "properties": {}}
    return _json(schema if strict else ANY_OBJECT, SPACES)


def _json(schema: dict[str, Any], spaces: int) -> Shape:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": spaces}


def _sequence(parts: list[Shape]) -> Shape:
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": parts}


def part_of(form: Form, field: str) -> Shape:
    """A form as a part of a structural tag. Raises Unsupported naming `field` if it cannot be."""
    match form:
        case {"structural_tag": {"format": dict() as made}}:
            return made
        case {"json_schema": dict() as schema}:
            return _json(schema, FORM_SPACES)
        case {"json_object": _}:
            return _json(ANY_OBJECT, FORM_SPACES)
        case {"regex": str() as pattern}:
            return {"type": "regex", "pattern": pattern}
        case {"grammar": str() as grammar}:
            return {"type": "grammar", "grammar": grammar}
        case {"choice": list() as texts}:
            words = [{"type": "const_string", "value": text} for text in texts]
            return {"type": "or", "elements": words}
    raise Unsupported(field, "is not supported with this form as a part of another")


def spelled(text: str, special: Mapping[str, int]) -> list[Shape]:
    """Parts of a tag that force `text`, its special tokens as ids. special: ids of special tokens
    by text."""
    if not text:
        return []
    words = [word for word in special if word in text]
    pieces = re.split("(" + "|".join(map(re.escape, words)) + ")", text) if words else [text]
    return [
        {"type": "token", "token": special[piece]}
        if piece in special
        else {"type": "const_string", "value": piece}
        for piece in pieces
        if piece
    ]
