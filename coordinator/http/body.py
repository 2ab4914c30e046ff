"""Reads request bodies: within bounds of size and time, and with the field that is wrong."""

from __future__ import annotations

import asyncio
import functools
import typing
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dspark.errors import InvalidRequest, RequestCancelled

READ_S = 30.0
MOST_ERRORS = 2048  # of one body that are looked at, to name the field

M = TypeVar("M", bound=BaseModel)


def validated(kind: type[M], content: bytes) -> M:
    """Parses JSON as a body of this kind. Raises InvalidRequest naming the field."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise InvalidRequest("body", f"{error.error_count()} values are wrong") from None
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        paths = [_path(kind, each) for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]

        def reach(place: int) -> tuple[int, list[int]]:
            items = [part for part in errors[place]["loc"] if isinstance(part, int)]
            return paths[place].count(".") + len(items), items

        # Of a union's alternatives report the one that matched deepest, then farthest in a list.
        at = max(range(len(paths)), key=reach)
        field, problem = paths[at], str(errors[at]["msg"])
        raise InvalidRequest(field or "body", problem[:1].lower() + problem[1:300]) from None


def _path(kind: type[BaseModel], error: ErrorDetails) -> str:
    """The path of an error in the body, such as `messages[0]`, without the names of the union
    alternatives that were tried."""
    words, loc = "", error["loc"]
    for index, part in enumerate(loc):
        unknown = error["type"] == "extra_forbidden" and index == len(loc) - 1
        if isinstance(part, int):
            words += f"[{part}]"
        elif index == 0 or unknown or part in _fields(kind):
            words += f".{part[:100]}" if words else part[:100]
    return words


@functools.cache
def _fields(kind: type[BaseModel]) -> frozenset[str]:
    """Names of the fields of `kind` and of all models nested in it."""
    names = {field.alias or name for name, field in kind.model_fields.items()}
    waiting = [field.annotation for field in kind.model_fields.values()]
    while waiting:
        each = waiting.pop()
        waiting += typing.get_args(each)
        if isinstance(each, type) and issubclass(each, BaseModel):
            names |= _fields(each)
    return frozenset(names)


async def read_body(request: Request, kind: type[M], most: int) -> M:
    """Reads a JSON body of at most `most` bytes as `kind`. Raises HTTPException, InvalidRequest."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers send JSON to another origin only after a preflight, so foreign pages cannot post.
    if media != "application/json":
        raise HTTPException(415, f"content-type: {media[:100] or 'none'} is not application/json")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        raise HTTPException(415, f"content-encoding: {coding[:100]} is not supported")
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    content = bytearray()
    try:
        async with asyncio.timeout(READ_S):
            async for part in request.stream():
                content += part
                if len(content) > most:
                    raise _too_large(most)
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {READ_S:g} s") from None
    except ClientDisconnect:
        raise RequestCancelled("the client went away") from None
    return validated(kind, bytes(content))


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {most} bytes")


def described_by(kind: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a FastAPI route that reads a body of this kind."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    # Nested models are inlined, so that routes need no shared components.
    parts = schema.pop("$defs", {})
    return {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _inlined(schema, parts)}},
        }
    }


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(parts[str(node["$ref"]).rsplit("/", 1)[-1]], parts)
        return {key: _inlined(value, parts) for key, value in node.items()}
    if isinstance(node, list):
        return [_inlined(value, parts) for value in node]
    return node
