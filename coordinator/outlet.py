"""What lanes put out for one client: a bounded queue with an end. One writer per answer, one reader.

A lane never waits for a client: a reader that falls too far behind is told so by `Overfull`, and the lane cuts it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from coordinator.answer import Piece


class Overfull(RuntimeError):
    """The client has not read for too long."""


class Outlet:
    """Pieces in order, then an end: None when all answers are complete, or the error that ended them."""

    def __init__(self, limit: int, answers: int = 1) -> None:
        self._limit = limit * answers
        self._open = answers
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
        """One answer has ended. The last end counts, or the first error."""
        self._open -= 1
        if not self._closed and (error is not None or not self._open):
            self._closed, self._error = True, error
            self._wake()

    async def get(self) -> Piece | None:
        """The next piece; None after the last one of complete answers. Raises the error that ended them."""
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
