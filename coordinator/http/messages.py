"""Messages of a conversation, as chat templates take them: content is plain text."""

from __future__ import annotations

from typing import Any

from dspark.errors import InvalidRequest, Unsupported

MAX_MESSAGES = 4096


def read_messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with parts of text joined; other parts are refused by name."""
    if not given:
        raise InvalidRequest("messages", "the list is empty")
    if len(given) > MAX_MESSAGES:
        raise InvalidRequest("messages", f"{len(given)} messages, at most {MAX_MESSAGES} are allowed")
    return [_read(message, f"messages[{index}]") for index, message in enumerate(given)]


def _read(message: dict[str, Any], field: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{field}.role", "must be a string such as system, user or assistant")
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(_text(part, f"{field}.content[{index}]") for index, part in enumerate(content))
    elif content is None and role == "assistant":
        content = ""
    elif not isinstance(content, str):
        raise InvalidRequest(f"{field}.content", "must be a string or a list of parts of text")
    return {**message, "content": content}


def _text(part: Any, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if isinstance(kind, str) and kind != "text":
        raise Unsupported(f"{field}.type", f"{kind[:100]!r} is not supported; text is")
    raise InvalidRequest(field, "must be a part of text")
