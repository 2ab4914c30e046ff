"""Clients that do not read: how long each has left a message untaken, and an end for those that do so for too long.

The transport takes a few megabytes for a client that has stopped reading before anybody notices; from the first message
that it does not take any more, time runs. Lanes never wait for clients, see `outlet`; this frees what such a client
still holds: its sequences, its place among the streams, and what was written for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from coordinator.clock import Clock, Timer
from dspark.errors import Overloaded
from dspark.runtime.telemetry import Metrics

LOOKS = 10  # in the time one may take


class Reading:
    """One client's stream; `cut` ends its request, for the reason given."""

    def __init__(self, readers: Readers, cut: Callable[[Exception], None]) -> None:
        self._readers, self._cut = readers, cut
        self._task = asyncio.current_task()
        self.since: float | None = None  # clock time at which a message was offered that is not taken yet
        self.why: Exception | None = None  # it was cut

    def offered(self) -> None:
        self.since = self._readers.now()

    def taken(self) -> None:
        self.since = None

    def end(self) -> None:
        """It has nothing more to read."""
        self._readers.forget(self)

    def stop(self, why: Exception) -> None:
        """Ends the request, and the task that waits for the client."""
        self.why = why
        self._cut(why)
        if self._task is not None:
            self._task.cancel()


class Readers:
    """All clients of a front end. One timer for all, and none while nobody is there."""

    def __init__(self, longest_s: float, clock: Clock, metrics: Metrics) -> None:
        self._longest_s, self._clock, self._metrics = longest_s, clock, metrics
        self._all: dict[Reading, None] = {}
        self._timer: Timer | None = None

    def now(self) -> float:
        return self._clock.time()

    def begin(self, cut: Callable[[Exception], None]) -> Reading:
        """Call it in the task that writes."""
        made = Reading(self, cut)
        self._all[made] = None
        if self._timer is None:
            self._timer = self._clock.call_later(self._longest_s / LOOKS, self._look)
        return made

    def forget(self, reading: Reading) -> None:
        self._all.pop(reading, None)

    def _look(self) -> None:
        before = self.now() - self._longest_s
        late = [each for each in self._all if each.since is not None and each.since <= before]
        for each in late:
            self.forget(each)
            self._metrics.slow_readers_cut.inc()
            each.stop(Overloaded(f"the client took nothing for {self._longest_s:g} s", retry_after_s=1.0))
        self._timer = self._clock.call_later(self._longest_s / LOOKS, self._look) if self._all else None
