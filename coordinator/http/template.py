"""A target's chat template: messages to the prompt's text. Sandboxed jinja2, as the templates of the hub expect it.

The template comes with the checkpoint. It sees messages and keyword arguments, no attribute of any object, and loops
of a bounded length.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coordinator.reception.tokenizer import find_file
from dspark.errors import ConfigError, InvalidRequest

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
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
            self.arguments = frozenset(meta.find_undeclared_variables(environment.parse(source)) - _OURS)
        except jinja2.TemplateError as error:
            raise ConfigError(f"target: its chat template is not valid: {error}") from error
        self.arguments -= frozenset(environment.globals)

    def render(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any], *, add_generation_prompt: bool
    ) -> str:
        """The text of the prompt, special tokens included."""
        for name in arguments:
            if name not in self.arguments:
                known = ", ".join(sorted(self.arguments)) or "none"
                raise InvalidRequest(
                    f"chat_template_kwargs.{name}", f"the target's chat template has no such argument; it has {known}"
                )
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._tokens, **arguments
            )
        except _Refused as error:
            raise InvalidRequest("messages", str(error)[:500]) from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise InvalidRequest(
                "messages", f"the target's chat template cannot render them: {str(error)[:300]}"
            ) from error


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


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
