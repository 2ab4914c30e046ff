"""A minimal HTTP/1.1 client: posts a JSON body and reads the reply line by line as it arrives.

It uses the standard library only and little processor time: on a small machine the client's own
work is part of every figure. There is one connection per request, as for a real user; a body ends
by its length, its chunks, or the end of the connection.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

from dspark.errors import Denied, DsparkError, InvalidRequest, Overloaded, Unavailable

LINE_LIMIT = 1 << 20  # bytes of one line
BODY_LIMIT = 1 << 16  # bytes of an error's body that are read
RETRY_AFTER_S = 1.0


async def post_lines(url: str, body: object, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """Lines of the reply's body without their ends. Raises DsparkError for any status but 200."""
    reader, writer = await _connect(url)
    try:
        content = json.dumps(body).encode()
        parts = urlsplit(url)
        head = {
            "Host": parts.netloc,
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
        }
        query = f"?{parts.query}" if parts.query else ""
        lines = [
            f"POST {parts.path}{query} HTTP/1.1",
            *(f"{key}: {value}" for key, value in {**head, **headers}.items()),
        ]
        writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + content)
        await writer.drain()
        status, fields = await _head(reader, url)
        blocks = _body(reader, fields)
        if status != 200:
            raise await _refusal(status, blocks, url)
        rest = b""
        async for block in blocks:
            *whole, rest = (rest + block).split(b"\n")
            for line in whole:
                yield line.rstrip(b"\r")
            if len(rest) > LINE_LIMIT:
                raise Unavailable(f"{url} sent a line of more than {LINE_LIMIT} bytes")
        if rest:
            yield rest
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise Unavailable(f"{url} broke off: {error or type(error).__name__}") from None
    finally:
        writer.close()


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("url", f"{url!r} is no http or https address")
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    try:
        return await asyncio.open_connection(
            parts.hostname, parts.port or (443 if secure else 80), ssl=secure, limit=LINE_LIMIT
        )
    except OSError as error:
        raise Unavailable(f"{url} cannot be reached: {error}") from None


async def _head(reader: asyncio.StreamReader, url: str) -> tuple[int, dict[str, str]]:
    """Reads the head of the reply: (status, header fields by name in lower case)."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise Unavailable(f"{url} does not speak HTTP: {lines[0][:80]!r}")
    pairs = (line.split(":", 1) for line in lines[1:] if ":" in line)
    return int(words[1]), {key.strip().lower(): value.strip() for key, value in pairs}


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> AsyncIterator[bytes]:
    if fields.get("transfer-encoding", "").lower() == "chunked":
        # `readuntil` fails where the connection ends, which `readline` takes for an empty line
        while size := int((await reader.readuntil(b"\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in fields:
        yield await reader.readexactly(int(fields["content-length"]))
    else:
        while block := await reader.read(1 << 16):
            yield block


async def _refusal(status: int, blocks: AsyncIterator[bytes], url: str) -> DsparkError:
    said = b""
    async for block in blocks:
        said += block
        if len(said) > BODY_LIMIT:
            break
    text = f"{url} answered {status}: {said[:300].decode('utf-8', 'replace')}"
    if status in (401, 403):
        return Denied(text)
    if status == 429:
        return Overloaded(text, RETRY_AFTER_S)
    return Unavailable(text) if status >= 500 else InvalidRequest("request", text)
