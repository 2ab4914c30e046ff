"""Responses of server-sent events, and clients that disconnect.

The status line waits for the first event, so that an error before it gets its own status. After a
long wait comments are sent meanwhile, which clients skip. A disconnect is noticed on the
connection, not at the next write.

With a pace (`reception/pacing.py`) a stream is padded with comments, and its last event is sent at
the end of a term. A whole answer is sent at the end of a term too, padded with spaces to as many
bytes as a stream would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine
from itertools import accumulate
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.http.api import Api
from coordinator.http.connection import cut
from coordinator.http.errors import described
from coordinator.reception.pacing import PacketPace, at_pace
from dspark.errors import RequestCancelled

T = TypeVar("T")

HEAD_ALONE = "dspark.head"  # key of a scope whose client asked for no body (HEAD)
KEEPALIVE_S = 15.0  # without an event, then a comment is sent
DONE = b"data: [DONE]\n\n"
_COMMENT = b": still here\n\n"
_HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies such as nginx would buffer events
}


def written(told: object) -> bytes:
    """A response body as compact JSON in UTF-8. Raises ValueError for NaN and infinities."""
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(data: object) -> bytes:
    """One server-sent event with `data` as JSON in ASCII: clients may split lines at U+2028."""
    return b"data: %b\n\n" % json.dumps(data, separators=(",", ":")).encode()


def failure(error: Exception) -> bytes:
    """The event that reports an error after the first event."""
    return event(described(error)[1])


class _Untaken(Exception):
    """The client did not read an event in time."""


class EventStream(Response):
    """Sends what `events` yields, whole events in bytes. They are closed when the client has
    disconnected.

    An error of `events` becomes the status before the first event, and the event `failed(error)`
    after it. A client that reads nothing for `max_unread_s` counts as disconnected: its connection
    is aborted and unsent bytes are dropped.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        api: Api,
        events: AsyncGenerator[bytes],
        headers: dict[str, str] | None = None,
        failed: Callable[[Exception], bytes] = failure,
    ) -> None:
        self._api, self._events, self._failed = api, events, failed
        self.status_code, self.background = 200, None
        self.init_headers({**_HEADERS, **(headers or {})})
        self._begun, self._sent = False, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._sent = asyncio.get_running_loop().time()
        try:
            async with contextlib.aclosing(self._events):
                if HEAD_ALONE in scope:
                    await self._begin(send)
                else:
                    await while_connected(self._keep(receive, send), self._tell(send))
        except _Untaken:
            self._api.processor.metrics.slow_readers_cut.inc()
            if cut(scope):
                await left(receive)  # then the server knows why the response is incomplete
            return
        except RequestCancelled:
            if not self._begun:
                raise
        if self._begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> None:
        try:
            async for part in self._events:
                await self._write(send, part)
        except _Untaken:
            raise
        except Exception as error:
            if not self._begun:
                raise
            await self._write(send, self._failed(error))

    async def _write(self, send: Send, part: bytes) -> None:
        if not self._begun:
            await self._begin(send)
        self._sent = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._api.config.max_unread_s):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError:
            raise _Untaken from None

    async def _begin(self, send: Send) -> None:
        self._begun = True
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})

    async def _keep(self, receive: Receive, send: Send) -> None:
        """Returns when the client has disconnected; sends comments until then."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(self._sent + KEEPALIVE_S):
                    return await left(receive)
            except TimeoutError:
                if loop.time() - self._sent >= KEEPALIVE_S:
                    await self._write(send, _COMMENT)


async def left(receive: Receive) -> None:
    """Returns when the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def while_connected(watch: Coroutine[Any, Any, None], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Ends it and raises RequestCancelled if `watch` returns before, which
    waits until the client has disconnected. The request's body must have been read before."""
    working, watching = asyncio.create_task(work), asyncio.create_task(watch)
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        watching.result()
        raise RequestCancelled("the client went away")
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


_FILLER = (b": ", b"\n\n")
_LEAST = sum(map(len, _FILLER))


async def paced_events(
    events: AsyncGenerator[bytes], pace: PacketPace, max_tokens: int
) -> AsyncGenerator[bytes]:
    """Yields `events` in one frame per interval, the last event in the last frame. Raises their
    errors."""
    fitting = functools.partial(_fitting, room=pace.frame - _LEAST)
    at_once = at_pace(events, pace, max_tokens, count=fitting, may_end=lambda _: True)
    async with contextlib.aclosing(at_once):
        async for ready in at_once:
            yield framed(b"".join(ready), pace.frame)


async def paced_whole(
    answer: Coroutine[Any, Any, bytes], pace: PacketPace, max_tokens: int
) -> bytes:
    """The whole answer, padded, when a term ends."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    body = await answer
    ticks = pace.ticks(max_tokens)
    term = ticks * pace.interval_s
    spent = loop.time() - began
    await asyncio.sleep(max(math.ceil(spent / term), 1) * term - spent)
    size = pace.frame * ticks
    return body.ljust(size * max(math.ceil(len(body) / size), 1))


def _fitting(events: list[bytes], room: int) -> int:
    """How many leading events fit into `room` bytes: one at least, which may be larger."""
    sizes = accumulate(map(len, events))
    return max(sum(size <= room for size in sizes), 1)


def framed(data: bytes, frame: int) -> bytes:
    """`data`, padded by a comment to the least multiple of `frame` bytes that holds both."""
    whole = frame * math.ceil((len(data) + _LEAST) / frame)
    return data + _FILLER[0] + b"." * (whole - len(data) - _LEAST) + _FILLER[1]
