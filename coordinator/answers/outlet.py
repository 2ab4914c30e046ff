"""What lanes put out for one client: a bounded queue with an end. One writer per answer, one reader.

A lane never waits for a client: a reader that falls too far behind is told so by `Overfull`, and is cut.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from coordinator.answers.answer import Piece
from coordinator.answers.turnstile import Turnstile


class Overfull(RuntimeError):
    """The client has not read for too long."""


class Sink(Protocol):
    """Where the pieces of a request's answers go, wherever its client is."""

    def push(self, piece: Piece) -> None:
        """Never waits; raises `Overfull` when nobody takes what is there."""

    def close(self, error: Exception | None = None) -> None:
        """One answer has ended, in good order or by an error."""


class Outlet:
    """Pieces in order, then an end: None when all answers are complete, or the error that ended them.

    turnstile: what its reader shares with those of other clients.
    """

    def __init__(self, limit: int, answers: int = 1, turnstile: Turnstile | None = None) -> None:
        self._limit = limit * answers
        self._open = answers
        self._waiting: list[tuple[Piece, float]] = []
        self._closed = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._turnstile = turnstile or Turnstile()

    def push(self, piece: Piece) -> None:
        if self._closed:
            return
        if len(self._waiting) >= self._limit and piece.end is None:
            raise Overfull
        self._waiting.append((piece, self._loop.time()))
        self._wake()

    def close(self, error: Exception | None = None) -> None:
        """The last end counts, or the first error."""
        self._open -= 1
        if not self._closed and (error is not None or not self._open):
            self._closed, self._error = True, error
            self._wake()

    async def take(self) -> list[tuple[Piece, float]] | None:
        """All that waits, with the clock times it came at; None behind the last piece. Raises the error at the end."""
        while not self._waiting:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._reader = self._loop.create_future()
            await self._reader
            await self._turnstile.passed()
        taken, self._waiting = self._waiting, []
        return taken

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
