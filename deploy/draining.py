"""Workers that will leave: announced as draining until no sequence needs them, or until their time is up.

A drafter's sequences find another one at once; a verifier's run to their end there. Whoever is still there when the
time is up goes to another verifier by its commit log, as after a loss, and no client notices but by the pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Departures:
    """Who is waited for, and who is waited for no more. Lives on one event loop."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._awaited: dict[str, asyncio.Event] = {}
        self._released: set[str] = set()

    @property
    def released(self) -> frozenset[str]:
        """Those that are announced no more, because they are about to end."""
        return frozenset(self._released)

    def heard(self, idle: Iterable[str]) -> None:
        """The coordinator said that nobody needs these any more."""
        for name in idle:
            if name in self._awaited:
                self._awaited[name].set()

    async def until_idle(self, name: str) -> bool:
        """Waits for one draining worker, then releases it; returns whether it was idle in time."""
        event = self._awaited.setdefault(name, asyncio.Event())
        try:
            await asyncio.wait_for(event.wait(), self._longest_s)
        except TimeoutError:
            return False
        finally:
            self._awaited.pop(name, None)
            self._released.add(name)
        return True

    def forget(self, name: str) -> None:
        """It has ended; another one of this name is another one."""
        self._released.discard(name)
