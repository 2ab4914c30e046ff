"""What a lane puts out for one client: a bounded queue with an end. One writer, one reader.

A lane never waits for a client: a reader that falls too far behind is told so by `Overfull`, and the lane cuts it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from coordinator.answer import Piece


class Overfull(RuntimeError):
    """The client has not read for too long."""


class Outlet:
    """Pieces in order, then an end: None for a complete answer, or the error that ended it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[Piece] = deque()
        self._closed = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None

    def push(self, piece: Piece) -> None:
        if self._closed:
            return
        if len(self._pieces) >= self._limit:
            raise Overfull
        self._pieces.append(piece)
        self._wake()

    def close(self, error: Exception | None = None) -> None:
        """The first end counts."""
        if not self._closed:
            self._closed, self._error = True, error
            self._wake()

    async def get(self) -> Piece | None:
        """The next piece; None after the last one of a complete answer. Raises the error that ended it."""
        while not self._pieces:
            if self._closed:
                if self._error is not None:
                    raise self._error
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._pieces.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
