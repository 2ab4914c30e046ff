"""What a coordinator is to hear of its rounds: made and said behind the turns, once orders have
left.

Nobody waits for it, while the order's drafter may need the processor that making it takes, and
hearing and answering it: it is said when the next pass has begun, or nothing has come for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from dspark.rounds.control import PassReport, Up
from dspark.runtime.device_worker import DeviceWorker

LEAVE_S = 0.004  # after which news wait no longer than to the next turn for orders to leave ...
LOOK_S = 0.05  # ... and where no turn comes, about so long


Unsaid = Callable[[], PassReport]  # news that are made when they are told


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
        self._saying = False  # whether some are about to be said
        self._watched = False  # whether somebody looks after those that wait for orders to leave
        self._say_by = 0.0

    def add(self, *news: Up | Unsaid) -> None:
        self._news += news

    def tell(self) -> None:
        """At the end of a turn: all that came is about to be said. Where orders are leaving not
        even a thread is woken: it would be in their way."""
        if self._news and not self._saying:
            self._saying, self._say_by = True, time.monotonic() + LEAVE_S
        if self._saying and self._due():
            self._post()

    def _due(self) -> bool:
        """Whether none waits: else again when orders have left, in a later turn, or when somebody
        looks."""
        if not self.leaving() or time.monotonic() >= self._say_by:
            return True
        if not self._watched:
            self._watched = True
            self._events.call_soon_threadsafe(self._events.call_later, LOOK_S, self._look)
        return False

    def _post(self) -> None:
        self._device.post(self._job, self._events, computes=False)

    def orders_left(self) -> None:
        """On a thread of a drafter's stream."""
        if self._saying:
            self._post()

    def _say_all(self) -> None:
        if not self._saying or not self._due():
            return  # it was said in the meantime, or more orders came
        self._saying = False
        news, self._news = self._news, []
        self._say([each() if callable(each) else each for each in news])

    def _look(self) -> None:
        """On the event loop: a drafter that hangs takes no order, and a lane that waits for clients
        has no turn."""
        self._watched = False
        if self._saying:
            self._post()
