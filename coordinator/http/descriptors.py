"""A process that runs out of file descriptors: how many connections there may be, and what is said when one more fails.

The event loop's listener tries as often as its backlog says before it pauses for a second, and complains each time.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Callable
from typing import Any

import structlog

log = structlog.get_logger("dspark.http")

ACCEPTS = 16  # connections taken in one turn of the event loop
SPARE = 64  # descriptors left to the rest of the process
SAY_EVERY_S = 1.0
_EXHAUSTED = "socket.accept() out of system resource"  # as the event loop puts it


def room(most: int) -> int:
    """Connections that descriptors are there for, `most` at most."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    try:
        free = soft - len(os.listdir("/proc/self/fd"))
    except OSError:
        free = soft // 2
    return max(min(most, max(free - SPARE, free // 2)), 1)


class Exhausted:
    """Counts connections that could not be taken, and says so once a second. Other complaints go where they went."""

    def __init__(self, loop: asyncio.AbstractEventLoop, refused: Callable[[], None]) -> None:
        self._loop, self._refused = loop, refused
        self._before = loop.get_exception_handler()
        self._failed = 0
        self._timer: asyncio.TimerHandle | None = None
        loop.set_exception_handler(self._heard)

    def stop(self) -> None:
        """Lets the loop complain as before."""
        if self._loop.get_exception_handler() == self._heard:
            self._loop.set_exception_handler(self._before)

    def _heard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _EXHAUSTED:
            if self._before is not None:
                self._before(loop, context)
            else:
                loop.default_exception_handler(context)
            return
        self._refused()
        self._failed += 1
        if self._timer is None:
            self._say(context.get("exception"))

    def _say(self, error: object) -> None:
        self._timer = None
        if self._failed:
            log.warning("http.no_descriptors", attempts=self._failed, error=str(error))
            self._failed = 0
            self._timer = self._loop.call_later(SAY_EVERY_S, self._say, error)
