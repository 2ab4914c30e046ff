"""Wakes one waiter, however often it is rung before: what piled up meanwhile is taken in one go."""

from __future__ import annotations

import asyncio


class Wakeup:
    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def heard(self) -> None:
        """Returns once it was rung since the last call."""
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
            self._waiter = None
        self._rung = False
