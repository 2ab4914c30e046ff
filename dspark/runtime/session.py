"""A long-lived bidirectional stream of commands and events, joined by tags: both of its ends.

`Session` asks. A command returns a future at once. When the stream ends, for whatever reason, every open future fails
in the same moment, so a loss is noticed when the connection breaks and not when a deadline passes. Events of another
incarnation or with an unknown tag are dropped and counted. Bounded: a worker that accepts no more commands is let go.

`CommandStream` answers. Commands start in the order they came and answer when they are done, so a long one does not
hold up the others. Events leave through one bounded queue: a peer that does not read loses its stream, and whoever
computes never notices. Neither end knows what is commanded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc
import structlog

from dspark.errors import Lost, PeerError
from dspark.runtime.outbox import Outbox
from dspark.runtime.telemetry import Metrics

log = structlog.get_logger("dspark.session")

C = TypeVar("C")
E = TypeVar("E")
T = TypeVar("T")

MAX_RUNNING = 1024  # commands at work at one time; more wait in the socket
MAX_UNSENT = 8192
MAX_OPEN = 65_536


class Session(Generic[C]):
    """`stream` starts the call; `command` makes a message from (tag, incarnation)."""

    def __init__(
        self,
        stream: Callable[[AsyncIterator[C]], AsyncIterable[Any]],
        *,
        name: str,
        incarnation: int,
        metrics: Metrics,
        on_lost: Callable[[str], None],
        on_news: Callable[[Any], None] = lambda event: None,
    ) -> None:
        self._stream, self._name, self._incarnation = stream, name, incarnation
        self._metrics, self._on_lost, self._on_news = metrics, on_lost, on_news
        self._tags = itertools.count(1)
        self._unsent: deque[C] = deque()
        self._sender: asyncio.Future[None] | None = None
        self._open: dict[int, tuple[asyncio.Future[Any], Callable[[Any], Any]]] = {}
        self._why_lost: str | None = None
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def ask(self, command: Callable[[int, int], C], read: Callable[[Any], T]) -> asyncio.Future[T]:
        """Sends; `read` turns the event with the same tag into the result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._why_lost is not None:
            _fail(future, f"{self._name}: {self._why_lost}")
            return future
        tag = next(self._tags)
        self._open[tag] = (future, read)
        self._unsent.append(command(tag, self._incarnation))
        self._wake_sender()
        if len(self._unsent) > MAX_UNSENT:
            self.close(f"{len(self._unsent)} commands wait to be sent")
        elif len(self._open) > MAX_OPEN:
            self.close(f"{len(self._open)} commands wait for an answer")
        return future

    def close(self, why: str) -> None:
        """Ends the stream; the worker frees what was opened through it."""
        self._lose(why)

    async def ended(self) -> None:
        """Waits until the stream is gone for good."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    async def _commands(self) -> AsyncIterator[C]:
        while self._why_lost is None:
            while self._unsent:
                yield self._unsent.popleft()
            self._sender = asyncio.get_running_loop().create_future()
            await self._sender

    async def _listen(self) -> None:
        why = "the stream ended"
        try:
            async for event in self._stream(self._commands()):
                self._heard(event)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        except PeerError as error:
            why = f"broke the protocol: {error}"
        except Exception as error:  # a bug: it costs this worker, and whoever holds it knows at once
            log.error("session.failed", worker=self._name, exc_info=error)
            why = "its answer could not be read; see the coordinator's log"
        finally:
            self._lose(why)

    def _heard(self, event: Any) -> None:
        if event.incarnation != self._incarnation:
            self._metrics.dropped.labels(kind="event", reason="wrong_incarnation").inc()
            return
        if not event.tag:  # it answers nothing
            self._on_news(event)
            return
        future, read = self._open.pop(event.tag, (None, None))
        if future is None or read is None:
            self._metrics.dropped.labels(kind="event", reason="unknown_tag").inc()
        elif not future.done():
            try:
                result = read(event)
            except Exception as error:  # it is in no list any more, so nobody else would
                _fail(future, f"{self._name}: its answer could not be read: {error}")
                raise
            future.set_result(result)

    def _lose(self, why: str) -> None:
        if self._why_lost is not None:
            return
        self._why_lost = why
        self._unsent.clear()
        self._wake_sender()
        self._listening.cancel()
        waiting, self._open = self._open, {}
        for future, _ in waiting.values():
            if not future.done():
                _fail(future, f"{self._name}: {why}")
        self._on_lost(why)

    def _wake_sender(self) -> None:
        if self._sender is not None and not self._sender.done():
            self._sender.set_result(None)


def _fail(future: asyncio.Future[Any], why: str) -> None:
    future.set_exception(Lost(why))
    future.exception()  # whoever still waits sees it; whoever stopped waiting is no reason for a warning


class CommandStream(Generic[C, E]):
    """`answer` turns one command into its event, or into None when there is nothing to say."""

    def __init__(self, answer: Callable[[C], Awaitable[E | None]], metrics: Metrics) -> None:
        self._answer = answer
        self._metrics = metrics
        self._outbox: Outbox[E] = Outbox(metrics)
        self._running: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MAX_RUNNING)

    async def run(self, requests: AsyncIterator[C]) -> AsyncGenerator[E, None]:
        """Events until the peer ends its side and everything is answered."""
        reader = asyncio.create_task(self._read(requests))
        try:
            async with contextlib.aclosing(self._outbox.events()) as events:
                async for event in events:
                    yield event
            await reader
        finally:
            for task in (reader, *self._running):
                task.cancel()
            await asyncio.gather(reader, *self._running, return_exceptions=True)

    def say(self, event: E) -> None:
        """An event that answers nothing."""
        self._outbox.put(event)

    async def _read(self, requests: AsyncIterator[C]) -> None:
        try:
            async for command in requests:
                await self._room.acquire()
                task = asyncio.create_task(self._carry_out(command))
                self._running.add(task)
                task.add_done_callback(self._done)
            await asyncio.gather(*self._running, return_exceptions=True)
        finally:
            self._outbox.end()

    async def _carry_out(self, command: C) -> None:
        event = await self._answer(command)
        if event is not None:
            self._outbox.put(event)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.dropped.labels(kind="command", reason="failed").inc()
            log.error("command.failed", exc_info=error)
