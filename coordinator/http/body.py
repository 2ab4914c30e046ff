"""A request's body, read within bounds of size and time."""

from __future__ import annotations

import asyncio
from typing import Protocol, Self, TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from dspark.errors import Cancelled


class Readable(Protocol):
    """A kind of body."""

    @classmethod
    def read(cls, content: bytes) -> Self:
        """From JSON; InvalidRequest names the field."""


T = TypeVar("T", bound=Readable)

READ_S = 30.0


async def read_body(request: Request, kind: type[T], most: int) -> T:
    """The body as `kind`, of `most` bytes; errors name what is wrong."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A browser sends JSON to another origin only after asking, so pages from elsewhere cannot post here.
    if media != "application/json":
        raise HTTPException(415, f"content-type: {media[:100] or 'none'} is not application/json")
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
        raise Cancelled("the client went away") from None
    return kind.read(bytes(content))


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {most} bytes")
