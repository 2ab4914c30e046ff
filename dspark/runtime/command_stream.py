"""A worker's side of a long-lived stream: commands in, events out.

Commands start in the order they came and answer when they are done, so a long one does not hold up the others. Events
leave through one bounded queue: a peer that does not read loses its stream, and whoever computes never notices.
Knows nothing of what is commanded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from dspark.errors import Overloaded
from dspark.runtime.telemetry import Metrics

log = structlog.get_logger("dspark.stream")

C = TypeVar("C")
E = TypeVar("E")

MAX_EVENTS = 4096  # events that wait for the peer to read
MAX_RUNNING = 1024  # commands at work at one time; more wait in the socket


class CommandStream(Generic[C, E]):
    """`answer` turns one command into its event, or into None when there is nothing to say."""

    def __init__(self, answer: Callable[[C], Awaitable[E | None]], metrics: Metrics) -> None:
        self._answer = answer
        self._metrics = metrics
        self._events: asyncio.Queue[E | None] = asyncio.Queue(MAX_EVENTS)
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_RUNNING)
        self._overrun = False

    async def run(self, requests: AsyncIterator[C]) -> AsyncGenerator[E, None]:
        """Events until the peer ends its side and everything is answered."""
        reader = asyncio.create_task(self._read(requests))
        try:
            while (event := await self._events.get()) is not None:
                yield event
            if self._overrun:
                raise Overloaded("events were not read", retry_after_s=1.0)
            await reader
        finally:
            for task in (reader, *self._running):
                task.cancel()
            await asyncio.gather(reader, *self._running, return_exceptions=True)

    def say(self, event: E) -> None:
        """An event that answers nothing."""
        self._emit(event)

    async def _read(self, requests: AsyncIterator[C]) -> None:
        try:
            async for command in requests:
                await self._room.acquire()
                task = asyncio.create_task(self._carry_out(command))
                self._running.add(task)
                task.add_done_callback(self._done)
            await asyncio.gather(*self._running, return_exceptions=True)
        finally:
            self._emit(None)

    async def _carry_out(self, command: C) -> None:
        event = await self._answer(command)
        if event is not None:
            self._emit(event)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.dropped.labels(kind="command", reason="failed").inc()
            log.error("command.failed", exc_info=error)

    def _emit(self, event: E | None) -> None:
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
