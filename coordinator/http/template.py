"""From conversations to prompts: validation of messages, and the target's chat template.

The template is part of the checkpoint and runs in a sandboxed jinja2, set up as templates of the
hub expect. It gets messages and keyword arguments, has no access to attributes of objects, and its
loops are of bounded length.
"""

from __future__ import annotations

import datetime
import functools
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.reception.tokenizer import Tokenizer, find_file
from coordinator.requests.validation import check_count
from dspark.errors import ConfigError, InvalidRequest, Unsupported, in_short
from dspark.token_bytes import CONFIG, MAP, SPECIAL, tokenizer_settings
from dspark.token_bytes import FILE as VOCABULARY

MAX_MESSAGES = 4096
_TEXTS = {"text": "text", "refusal": "refusal"}

Turn = dict[str, str]
PromptIds = tuple[int, ...]


def read_messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with parts of text joined. Raises InvalidRequest for other parts, by name."""
    if not given:
        raise InvalidRequest("messages", "the list is empty")
    check_count("messages", len(given), MAX_MESSAGES, "messages")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(given)]


def newest_that_fit(
    said: Sequence[Turn], room: int, encode: Callable[[list[Turn]], PromptIds]
) -> tuple[PromptIds, int]:
    """(the prompt of a conversation within `room` tokens, how many of its oldest messages are left
    out of it).

    Leaves out the fewest pairs of question and answer, never a system message. A single turn that
    is too long stays, and is refused when it is submitted.
    """
    first = 1 if said[0]["role"] == "system" else 0

    def without(pairs: int) -> PromptIds:
        return encode([*said[:first], *said[first + 2 * pairs :]])

    prompt, most = without(0), (len(said) - first - 1) // 2
    if len(prompt) <= room or most < 1:
        return prompt, 0
    # a prompt grows with its turns
    fewest = bisect_left(range(most), True, lo=1, key=lambda pairs: len(without(pairs)) <= room)
    return without(fewest), 2 * fewest


# Keys with content that no template reads; others are for templates that read them.
_UNREAD = ("function_call", "audio", "images", "prefix")


def _read_message(message: dict[str, Any], field: str) -> dict[str, Any]:
    # Drops null keys: templates test whether a key exists, and clients send null for absent ones.
    message = {
        key: value
        for key, value in message.items()
        if value is not None and (key, value) != ("tool_calls", [])
    }
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{field}.role", "must be a string such as system, user or assistant")
    for key in filter(message.get, _UNREAD):
        raise Unsupported(f"{field}.{key}", "is not supported; text and tool_calls are")
    calls = message.get("tool_calls")
    if calls is not None:
        message["tool_calls"] = _read_calls(calls, f"{field}.tool_calls")
    content = message.get("content")
    if calls is not None and content is None:
        return message
    if content is None and role == "assistant":
        content = ""
    return {**message, "content": joined_texts(content, f"{field}.content", _TEXTS)}


def _read_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    """The calls of an assistant with arguments as objects: clients send them as JSON in a string,
    and templates write that JSON themselves."""
    if not isinstance(calls, list):
        raise InvalidRequest(field, "must be a list of calls")
    read = []
    for index, call in enumerate(calls):
        at = f"{field}[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(at, "must be a call of a function with a name")
        arguments = read_arguments(function.get("arguments", {}), f"{at}.function.arguments")
        read.append({**call, "function": {**function, "arguments": arguments}})
    return read


def read_arguments(given: Any, field: str) -> dict[str, Any] | str:
    """The arguments of a call. A string that is no JSON object stays as it is: targets write such
    calls, and clients send them back with the error. Raises InvalidRequest naming `field`."""
    if isinstance(given, str):
        try:
            arguments = json.loads(given) if given else {}
        except (ValueError, RecursionError):
            return given
        return arguments if isinstance(arguments, dict) else given
    if not isinstance(given, dict):
        raise InvalidRequest(field, "must be a JSON object")
    return given


def string(block: Mapping[str, Any], key: str, field: str) -> str:
    """The string at `key` of `block`, the object at `field` of a body. Raises InvalidRequest."""
    if not isinstance(block.get(key), str):
        raise InvalidRequest(f"{field}.{key}", "must be a string")
    return str(block[key])


def joined_texts(given: Any, field: str, kinds: Mapping[str, str]) -> str:
    """A string, or the texts of a list of parts joined by newlines. kinds: key of the text by the
    part's type. Raises InvalidRequest naming `field`."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise InvalidRequest(field, "must be a string or a list of parts of text")
    found = []
    for index, part in enumerate(given):
        at = f"{field}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            raise InvalidRequest(at, "must be a part of text")
        if kind not in kinds:
            raise Unsupported(f"{at}.type", f"{kind[:100]!r} is not supported; text is")
        found.append(string(part, kinds[kind], at))
    return "\n".join(found)


FILE, _TOOLS = "chat_template.jinja", "tool_use"
_REASONING = ("reasoning_content", "thinking", "reasoning")  # fields of an assistant's reasoning
# Probes: a template is rendered with these to see whether they appear in the text.
_SAID, CALLED = "Yq7RcP2w", "Kd4vTx9m"
USER = {"role": "user", "content": "u"}
_CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": CALLED, "arguments": {"a": 1}}}
CALLS = {"role": "assistant", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": CALLED, "content": _SAID}
# variables of a template that clients cannot set
_OURS = {"messages", "add_generation_prompt", "tools", "documents", *SPECIAL}


class _Refused(jinja2.TemplateError):
    """Raised by a template itself, for a conversation it cannot render."""


class _Generation(Extension):
    """Renders the content of `{% generation %}`, which marks an assistant's text for training."""

    tags = {"generation"}  # noqa: RUF012, the class attribute jinja2 asks for

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One chat template and the special tokens it may write. Raises ConfigError if invalid.

    for_tools: the template of conversations with tools; some targets have one of its own for them.
    """

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            autoescape=False,
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self._tokens, self.for_tools = dict(tokens or {}), self
        # How answers are written: in channels, or with marks around reasoning.
        self.has_channels = "<|channel|>" in source
        self.marks_thoughts = "</think>" in source and not self.has_channels
        try:
            self._template = environment.from_string(source)
            # Keyword arguments that may change the text: names it reads, even if some branch sets
            # them.
            parsed = environment.parse(source)
            self.arguments = frozenset(meta.find_undeclared_variables(parsed) - _OURS)
            self._has_developer = any(
                "developer" in repr(word.value) for word in parsed.find_all(nodes.Const)
            )
        except (jinja2.TemplateError, RecursionError) as error:
            raise ConfigError(f"target: its chat template is not valid: {error}") from error
        self.arguments -= frozenset(environment.globals)
        self._shows_role = functools.lru_cache(16)(self._try_role)

    def fitted(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages in roles that the template knows. Raises Unsupported, by name, for what it
        would leave out."""
        return [
            self._fitted(message, f"messages[{index}]") for index, message in enumerate(messages)
        ]

    def _fitted(self, message: Mapping[str, Any], field: str) -> Mapping[str, Any]:
        if message["role"] == "developer" and not self._has_developer:
            return {**message, "role": "system"}
        role = str(message["role"])
        if role not in ("system", "developer", "user", "assistant") and not self._shows_role(role):
            raise Unsupported(
                f"{field}.role", f"the target's chat template has no role {role[:64]!r}"
            )
        if "tool_calls" in message and not self._shows_calls:
            raise Unsupported(
                f"{field}.tool_calls", "the target's chat template shows no calls of tools"
            )
        return message

    def _try_role(self, role: str) -> bool:
        said = {"role": "assistant", "content": "a"}
        return any(
            self._shows(_SAID, [USER, before, {**_RESULT, "role": role}])
            for before in (CALLS, said)
        )

    @functools.cached_property
    def _shows_calls(self) -> bool:
        return self._shows(CALLED, [USER, CALLS, {**_RESULT, "name": "f"}]) or self._shows(
            CALLED, [USER, CALLS]
        )

    @functools.cached_property
    def shows_tools(self) -> bool:
        """Whether the template writes the tools that may be called."""
        tool = {
            "type": "function",
            "function": {"name": CALLED, "description": _SAID, "parameters": {"type": "object"}},
        }
        return self._shows(CALLED, [USER], [tool])

    def _shows(
        self,
        mark: str,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        try:
            return mark in self.render(messages, {}, add_generation_prompt=True, tools=tools)
        except InvalidRequest:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The text of the prompt, special tokens included. Absent tools and documents are None, as
        in transformers. Raises InvalidRequest."""
        for name in arguments:
            if name not in self.arguments:
                known = ", ".join(sorted(self.arguments)) or "none"
                raise InvalidRequest(
                    f"chat_template_kwargs.{name}",
                    f"the target's chat template has no such argument; it has {known}",
                )
        try:
            return self._template.render(
                messages=[self._with_reasoning(message) for message in messages],
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
                **arguments,
            )
        except _Refused as error:
            raise InvalidRequest("messages", str(error)[:500]) from error
        except Exception as error:  # filters raise what they like
            raise InvalidRequest(
                "messages", f"the target's chat template cannot render them: {str(error)[:300]}"
            ) from error

    def _with_reasoning(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message with its reasoning under all names that templates read."""
        reasoning = next(
            (message[name] for name in _REASONING if message.get(name) is not None), None
        )
        if reasoning is None:
            return message
        content = message.get("content")
        if self.has_channels and "tool_calls" in message and reasoning and content:
            # gpt-oss's template takes one of both before a call, and writes either as reasoning
            return {**message, "thinking": f"{reasoning}\n{content}", "content": ""}
        return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def find_template(target: str | None, revision: str | None) -> ChatTemplate | None:
    """The chat template of a folder or hub id; None when it has none. Raises ConfigError."""
    found = [_find(target, name, revision) for name in (CONFIG, MAP)]
    config = next((tokenizer_settings(path.parent) for path in found if path), {})
    given = config.get("chat_template")
    several = given if isinstance(given, list) else [{"name": "default", "template": given}]
    named: dict[str, Any] = {
        str(one.get("name")): one.get("template") for one in several if isinstance(one, dict)
    }
    # what stands in a file of its own wins
    for name, path in (("default", FILE), (_TOOLS, f"additional_chat_templates/{_TOOLS}.jinja")):
        if (file := _find(target, path, revision)) is not None:
            try:
                named[name] = file.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise ConfigError(f"target: {file} cannot be read: {in_short(error)}") from error
    tokens = {name: text for name in SPECIAL if (text := _token(config.get(name))) is not None}
    if not isinstance(named.get("default"), str):
        return None
    template = ChatTemplate(named["default"], tokens)
    if isinstance(named.get(_TOOLS), str):
        template.for_tools = ChatTemplate(named[_TOOLS], tokens)
    return template


def question_renderer(target: str) -> Callable[[str], str] | None:
    """A function that renders a question as a chat's prompt; None if the target has no template.

    It is sent as plain text, so a token that the tokenizer puts before every text is left out.
    """
    template = find_template(target, None)
    if template is None:
        return None
    put, path = "", _find(target, VOCABULARY, None)
    if path is not None and (tokenizer := Tokenizer.load(path.parent)) is not None:
        put = tokenizer.decode(tokenizer.encode("")[:1], skip_special=False)

    def render(text: str) -> str:
        turns = [{"role": "user", "content": text}]
        return template.render(turns, {}, add_generation_prompt=True).removeprefix(put)

    return render


def _find(target: str | None, name: str, revision: str | None) -> Path | None:
    try:
        return find_file(target, name, revision)
    except ConfigError:  # not in an offline cache, where absent and not fetched look alike
        return None


def _token(value: Any) -> str | None:
    """The text of a special token, given as a string or as an added token with attributes."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _refuse(message: str) -> None:
    raise _Refused(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
