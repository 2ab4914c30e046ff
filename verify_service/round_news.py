"""What a coordinator is to hear of its rounds: made and said behind the turns, once orders have left.

Nobody waits for it, and whoever makes it while an order is on its way out would be in the way of that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from dspark.rounds.control import PassReport, Up
from dspark.runtime.device_worker import DeviceWorker

LEAVE_S = 0.004  # after which news wait no longer than to the next turn for orders to leave ...
LOOK_S = 0.05  # ... and where no turn comes, about so long


class Unsaid(NamedTuple):
    """News that are made when they are told."""

    made: Callable[[], PassReport]


class RoundNews:
    """surely: runs a job, and takes what it raises for the end; say: takes news further."""

    def __init__(
        self,
        device: DeviceWorker,
        events: asyncio.AbstractEventLoop,
        surely: Callable[[Callable[[], None]], None],
        say: Callable[[Sequence[Up]], None],
    ) -> None:
        self._device, self._events, self._say = device, events, say
        self.leaving: Callable[[], bool] = lambda: False  # whether an order is on its way out
        self._job = partial(surely, self._say_all)
        self._news: list[Up | Unsaid] = []
        self._saying = self._held_back = False  # whether some are about to be said, and wait for orders to leave
        self._watched = False  # whether somebody looks after those that wait
        self._say_by = 0.0

    def add(self, *news: Up | Unsaid) -> None:
        self._news += news

    def tell(self) -> None:
        """At the end of a turn: all that came is about to be said."""
        if self._news and not self._saying:
            self._saying, self._say_by = True, time.monotonic() + LEAVE_S
            self._post()
        elif self._held_back and time.monotonic() >= self._say_by:
            self._post()

    def _post(self) -> None:
        self._device.post(self._job, self._events, computes=False)

    def orders_left(self) -> None:
        """On a thread of a drafter's stream."""
        if self._held_back:
            self._post()

    def _say_all(self) -> None:
        if not self._saying:
            return  # it was said in the meantime
        self._held_back = True
        if self.leaving() and time.monotonic() < self._say_by:
            if not self._watched:
                self._watched = True
                self._events.call_soon_threadsafe(self._events.call_later, LOOK_S, self._look)
            return  # again when they have left, in a later turn, or when somebody looks
        self._saying = self._held_back = False
        news, self._news = self._news, []
        self._say([each.made() if isinstance(each, Unsaid) else each for each in news])

    def _look(self) -> None:
        """On the event loop: a drafter that hangs takes no order, and a lane that waits for clients has no turn."""
        self._watched = False
        if self._held_back:
            self._post()
