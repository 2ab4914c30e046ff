"""A target's chat template: messages to the prompt's text. Sandboxed jinja2, as the templates of the hub expect it.

The template comes with the checkpoint. It sees messages and keyword arguments, no attribute of any object, and loops
of a bounded length.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.reception.tokenizer import find_file
from dspark.errors import ConfigError, InvalidRequest, Unsupported

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing
# What a template is tried with, to see whether it shows them.
_SAID, _CALLED = "Yq7RcP2w", "Kd4vTx9m"
_USER = {"role": "user", "content": "u"}
_CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": _CALLED, "arguments": {"a": 1}}}
_CALLS = {"role": "assistant", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "tool_call_id": "abcdefgh1", "name": _CALLED, "content": _SAID}
_OURS = {"messages", "add_generation_prompt", "tools", "documents", *_TOKENS}  # not a client's to set


class _Refused(jinja2.TemplateError):
    """The template's own word for a conversation it cannot render."""


class _Generation(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012, the class attribute jinja2 asks for

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One template and the special tokens it may write."""

    def __init__(self, source: str, tokens: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self._tokens = dict(tokens or {})
        try:
            self._template = environment.from_string(source)
            # Keyword arguments that may change what it writes: names it reads, those it sets in some branch included.
            parsed = environment.parse(source)
            self.arguments = frozenset(meta.find_undeclared_variables(parsed) - _OURS)
            self._has_developer = any("developer" in repr(word.value) for word in parsed.find_all(nodes.Const))
        except jinja2.TemplateError as error:
            raise ConfigError(f"target: its chat template is not valid: {error}") from error
        self.arguments -= frozenset(environment.globals)

    def fitted(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The messages in roles that the template knows; what it would leave out is refused by name."""
        return [self._fitted(message, f"messages[{index}]") for index, message in enumerate(messages)]

    def _fitted(self, message: Mapping[str, Any], field: str) -> Mapping[str, Any]:
        if message["role"] == "developer" and not self._has_developer:
            return {**message, "role": "system"}
        if message["role"] == "tool" and not self._shows_results:
            raise Unsupported(f"{field}.role", "the target's chat template has no role 'tool'")
        if "tool_calls" in message and not self._shows_calls:
            raise Unsupported(f"{field}.tool_calls", "the target's chat template shows no calls of tools")
        return message

    @functools.cached_property
    def _shows_results(self) -> bool:
        said = {"role": "assistant", "content": "a"}
        return any(self._shows(_SAID, [_USER, before, _RESULT]) for before in (_CALLS, said))

    @functools.cached_property
    def _shows_calls(self) -> bool:
        return self._shows(_CALLED, [_USER, _CALLS, {**_RESULT, "name": "f"}]) or self._shows(_CALLED, [_USER, _CALLS])

    def _shows(self, mark: str, messages: Sequence[Mapping[str, Any]]) -> bool:
        try:
            return mark in self.render(messages, {}, add_generation_prompt=True)
        except InvalidRequest:
            return False

    def render(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], *, add_generation_prompt: bool
    ) -> str:
        """The text of the prompt, special tokens included. What there is none of is None, as the library has it."""
        for name in arguments:
            if name not in self.arguments:
                known = ", ".join(sorted(self.arguments)) or "none"
                raise InvalidRequest(
                    f"chat_template_kwargs.{name}", f"the target's chat template has no such argument; it has {known}"
                )
        try:
            return self._template.render(
                messages=[_with_reasoning(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
                **arguments,
            )
        except _Refused as error:
            raise InvalidRequest("messages", str(error)[:500]) from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise InvalidRequest(
                "messages", f"the target's chat template cannot render them: {str(error)[:300]}"
            ) from error


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Under all names that templates read it by."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def find_template(target: str | None, revision: str | None) -> ChatTemplate | None:
    """The template of a folder or hub id; None when it has none."""
    config = _read_json(_find(target, CONFIG, revision))
    file = _find(target, FILE, revision)
    source: Any = file.read_text(encoding="utf-8") if file else config.get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {str(one.get("name")): one.get("template") for one in source if isinstance(one, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    return ChatTemplate(source, {name: text for name in _TOKENS if (text := _token(config.get(name))) is not None})


def question_renderer(target: str) -> Callable[[str], str] | None:
    """Renders one question as users of a chat ask it; None where the target has no template."""
    template = find_template(target, None)
    if template is None:
        return None
    return lambda text: template.render([{"role": "user", "content": text}], {}, add_generation_prompt=True)


def _find(target: str | None, name: str, revision: str | None) -> Path | None:
    try:
        return find_file(target, name, revision)
    except ConfigError:  # not in an offline cache, where absent and not fetched look alike
        return None


def _read_json(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"target: {path} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _token(value: Any) -> str | None:
    """Written as text, or as an added token with attributes."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _refuse(message: str) -> None:
    raise _Refused(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
