"""The queue from lanes to the reader of one request: bounded, with an end. One writer per answer,
one reader.

A lane never waits for a client: `push` raises Overloaded for a reader that falls too far behind,
and its request is ended. A report wakes the streams of a whole cohort, and a message to a client
takes some 0.2 ms of this process. So readers are woken a few at a time, and messages of workers are
handled in between.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from coordinator.answers.answer import CommittedTokens
from coordinator.clock import TURNS_TO_SEND
from dspark.errors import Overloaded

AT_A_TIME = 8  # streams for each turn of the event loop: a millisecond or two


class WakeUpLimit:
    """Limits how many readers of one process wake per turn of the event loop, in FIFO order."""

    def __init__(self, at_a_time: int = AT_A_TIME) -> None:
        self._at_a_time = at_a_time
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns = 0  # turns of the event loop until readers pass; 0 while none waits

    async def passed(self) -> None:
        """Waits for the caller's turn, after the orders of the next round have been sent."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if not self._turns:
            self._turns = TURNS_TO_SEND
            loop.call_soon(self._turn, loop)
        await mine

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._turns -= 1
        if not self._turns:
            passing = 0
            while self._waiting and passing < self._at_a_time:
                reader = self._waiting.popleft()
                if not reader.done():  # else it was cancelled
                    reader.set_result(None)
                    passing += 1
            self._turns = 1 if self._waiting else 0
        if self._turns:
            loop.call_soon(self._turn, loop)


class OutputSink(Protocol):
    """Receives the pieces of a request's answers."""

    def push(self, piece: CommittedTokens) -> None:
        """Adds a piece without waiting; raises Overloaded when too many are unread."""

    def close(self, error: Exception | None = None) -> None:
        """Ends the request: all its answers have ended, or `error` ended them. Called once."""


class OutputQueue:
    """Pieces in order, then an end: None when all answers are complete, or the error that ended
    them.

    limit: most unread pieces. wake_ups: the limit that its reader shares with other readers.
    """

    def __init__(self, limit: int, wake_ups: WakeUpLimit | None = None) -> None:
        self._limit = limit
        self._waiting: list[tuple[CommittedTokens, float]] = []
        self._closed = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._wake_ups = wake_ups or WakeUpLimit()

    def push(self, piece: CommittedTokens) -> None:
        if len(self._waiting) >= self._limit and piece.end is None:
            raise Overloaded("the client reads too slowly", retry_after_s=1.0)
        self._waiting.append((piece, self._loop.time()))
        self._wake()

    def close(self, error: Exception | None = None) -> None:
        self._closed, self._error = True, error
        self._wake()

    async def take(self) -> list[tuple[CommittedTokens, float]] | None:
        """Waits for pieces and returns all, with the clock times of their arrival; None after the
        last one. Raises the error that ended the request."""
        while not self._waiting:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._reader = self._loop.create_future()
            await self._reader
            await self._wake_ups.passed()
        taken, self._waiting = self._waiting, []
        return taken

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
