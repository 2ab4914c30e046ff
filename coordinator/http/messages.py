"""Messages of a conversation, as chat templates take them: content is plain text, arguments of calls are mappings."""

from __future__ import annotations

import json
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


def forget_oldest(said: list[dict[str, str]]) -> bool:
    """Takes the oldest question and its answer out of a conversation; False where a single turn is left."""
    first = 1 if said[0]["role"] == "system" else 0
    if len(said) - first < 3:
        return False
    del said[first : first + 2]
    return True


def _read(message: dict[str, Any], field: str) -> dict[str, Any]:
    # As the library does: templates ask whether a key is there, and clients write null for what is not.
    message = {key: value for key, value in message.items() if value is not None and (key, value) != ("tool_calls", [])}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{field}.role", "must be a string such as system, user or assistant")
    if "function_call" in message:
        raise Unsupported(f"{field}.function_call", "is not supported; tool_calls are")
    calls = message.get("tool_calls")
    if calls is not None:
        message["tool_calls"] = _read_calls(calls, f"{field}.tool_calls")
    content = message.get("content")
    if calls is not None and content is None:
        return message
    if isinstance(content, list):
        content = "\n".join(_text(part, f"{field}.content[{index}]") for index, part in enumerate(content))
    elif content is None and role == "assistant":
        content = ""
    elif not isinstance(content, str):
        raise InvalidRequest(f"{field}.content", "must be a string or a list of parts of text")
    return {**message, "content": content}


def _read_calls(calls: Any, field: str) -> list[dict[str, Any]]:
    """Calls an assistant made. Clients write their arguments as JSON in a text; templates write that themselves."""
    if not isinstance(calls, list):
        raise InvalidRequest(field, "must be a list of calls")
    read = []
    for index, call in enumerate(calls):
        at = f"{field}[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(at, "must be a call of a function with a name")
        given = function.get("arguments", {})
        try:
            arguments = (json.loads(given) if given else {}) if isinstance(given, str) else given
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            raise InvalidRequest(f"{at}.function.arguments", "must be a JSON object")
        read.append({**call, "function": {**function, "arguments": arguments}})
    return read


def _text(part: Any, field: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return str(part["refusal"])
    if isinstance(kind, str) and kind != "text":
        raise Unsupported(f"{field}.type", f"{kind[:100]!r} is not supported; text is")
    raise InvalidRequest(field, "must be a part of text")
