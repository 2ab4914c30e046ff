"""Clients of a round are served a few at a time, so that what workers say meanwhile is heard in between.

A verdict wakes the streams of a whole cohort at once, and a message to a client takes some 0.2 ms of this process: a
hundred of them in one turn of the loop are 20 ms in which no worker is heard.
"""

from __future__ import annotations

import asyncio
from collections import deque

from coordinator.clock import TURNS_TO_SEND

AT_A_TIME = 8  # streams for each turn of the event loop: a millisecond or two


class Turnstile:
    """Of one process. Readers pass in the order in which they came."""

    def __init__(self, at_a_time: int = AT_A_TIME) -> None:
        self._at_a_time = at_a_time
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns = 0  # of the event loop until somebody passes; 0 while nobody waits

    async def passed(self) -> None:
        """Returns when it is the caller's turn: after the orders of the next round have left."""
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
