"""Messages of a conversation, as chat templates take them: content is plain text, arguments of calls are mappings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from dspark.errors import InvalidRequest, Unsupported

MAX_MESSAGES = 4096

Turn = dict[str, str]
Prompt = tuple[int, ...]


def read_messages(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with parts of text joined; other parts are refused by name."""
    if not given:
        raise InvalidRequest("messages", "the list is empty")
    if len(given) > MAX_MESSAGES:
        raise InvalidRequest("messages", f"{len(given)} messages, at most {MAX_MESSAGES} are allowed")
    return [_read(message, f"messages[{index}]") for index, message in enumerate(given)]


def newest_that_fit(said: Sequence[Turn], room: int, encode: Callable[[list[Turn]], Prompt]) -> tuple[Prompt, int]:
    """(the prompt of a conversation within `room` tokens, how many of its oldest messages are left out of it).

    Questions go with their answers, as few as it takes. A single turn that is too long stays: whoever is asked says so.
    """
    first = 1 if said[0]["role"] == "system" else 0
    prompt = encode(list(said))
    if len(prompt) <= room:
        return prompt, 0
    few, enough = 0, max((len(said) - first - 1) // 2, 0)  # turns that are too few to leave out, and all that can be
    while enough - few > 1:  # a prompt grows with its turns
        middle = (few + enough) // 2
        fits = len(encode(_without(said, first, middle))) <= room
        few, enough = (few, middle) if fits else (middle, enough)
    return encode(_without(said, first, enough)), 2 * enough


def _without(said: Sequence[Turn], first: int, turns: int) -> list[Turn]:
    return [*said[:first], *said[first + 2 * turns :]]


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
