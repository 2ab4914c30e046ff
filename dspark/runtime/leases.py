"""Sequences of one stream that nobody has mentioned for too long: a lost release must not hold memory for ever.

The stream itself is the first lease: when it ends, everything opened through it is freed. This one is for what a
living coordinator has forgotten. Whoever comes back after all is told that the sequence is unknown, and fills it anew.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable

import structlog

log = structlog.get_logger("dspark.leases")

Ref = tuple[int, int]  # sequence, epoch


class Leases:
    """lease_s: seconds without a word. Lives on the event loop."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._heard: dict[int, tuple[int, float]] = {}  # by sequence: its epoch, when it was mentioned last

    def open(self, sequence: int, epoch: int, *, at_work: bool = False) -> None:
        """From now on; while it is at work it does not run out."""
        self._heard[sequence] = (epoch, math.inf if at_work else time.monotonic())

    def mention(self, sequences: Iterable[int]) -> None:
        """Of those that are held; commands about others change nothing."""
        now, heard = time.monotonic(), self._heard
        for sequence in sequences:
            known = heard.get(sequence)
            if known is not None and known[1] < now:
                heard[sequence] = (known[0], now)

    def end(self, sequence: int, epoch: int) -> None:
        """It was freed, under this epoch or a lower one."""
        if self._heard.get(sequence, (math.inf, 0.0))[0] <= epoch:
            del self._heard[sequence]

    def overdue(self) -> list[Ref]:
        """Forgets them."""
        least = time.monotonic() - self._lease_s
        late = [(sequence, epoch) for sequence, (epoch, when) in self._heard.items() if when < least]
        for sequence, _ in late:
            del self._heard[sequence]
        return late

    async def watch(self, free: Callable[[list[Ref]], Awaitable[None]]) -> None:
        """Frees what is overdue, until cancelled."""
        while True:
            await asyncio.sleep(self._lease_s / 4)
            late = self.overdue()
            try:
                if late:
                    await free(late)
            except Exception as error:  # next time, unless somebody mentions them meanwhile
                log.error("lease.not_freed", sequences=len(late), exc_info=error)
                for sequence, epoch in late:
                    self._heard.setdefault(sequence, (epoch, -math.inf))
