"""Workers that will leave: announced as draining until no sequence needs them, or until their time is up.

A drafter's sequences find another one at once; a verifier's run to their end there. Whoever is still there when the
time is up goes to another verifier by its commit log, as after a loss, and no client notices but by the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Leaving:
    """Names of draining workers. Lives on one event loop."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._idle: dict[str, asyncio.Event] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._idle)

    def __bool__(self) -> bool:
        return bool(self._idle)

    def heard(self, idle: Iterable[str]) -> None:
        """The coordinator said that nobody needs these any more."""
        for name in idle:
            if name in self._idle:
                self._idle[name].set()

    async def until_idle(self, name: str) -> bool:
        """Drains one worker; returns whether it ended idle. After this it is announced no more."""
        event = self._idle.setdefault(name, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), self._longest_s)
        except TimeoutError:
            return False
        finally:
            self._idle.pop(name, None)
        return True
