"""The bounded queue of messages to one peer. Its writers never wait.

A peer that does not read loses its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

import structlog

from dspark.errors import Overloaded
from dspark.runtime.telemetry import Metrics

log = structlog.get_logger("dspark.outbox")

E = TypeVar("E")

MAX_EVENTS = 4096  # that wait for the peer to read


class Outbox(Generic[E]):
    """The messages of one stream to its peer. Used on the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._events: asyncio.Queue[E | None] = asyncio.Queue(MAX_EVENTS)
        self._overrun = False
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def until(self, *ends: asyncio.Future[None]) -> AsyncGenerator[E, None]:
        """Yields messages until one of `ends` is done, whose error is raised, or until `fail`; the
        others are cancelled. Raises Overloaded where the peer did not read."""
        ends = (*ends, self._failure)
        for each in ends:
            each.add_done_callback(lambda _: self.put(None))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            if self._overrun:
                raise Overloaded("events were not read", retry_after_s=1.0)
            for each in (await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))[0]:
                each.result()  # why it ended
        finally:
            for each in ends:
                each.cancel()

    def fail(self, error: Exception) -> None:
        """Ends the stream with this error."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def put(self, event: E | None) -> None:
        """Queues a message; None ends the stream. A full queue ends it too, as overrun."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            if not self._overrun:
                log.warning("stream.not_read", events=MAX_EVENTS)
            self._metrics.dropped.labels(kind="event", reason="not_read").inc()
            self._overrun = True
            # Makes room for the end, which the writer meets once it moves again.
            self._events.get_nowait()
            self._events.put_nowait(None)
