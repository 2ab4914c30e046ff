"""Reports of rounds to the coordinator, made and sent after turns, once orders have left.

No round waits for a report. Making, receiving and answering it takes processor time that the
order's drafter may need. So reports are sent after the orders, or after a bounded wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from dspark.rounds.control import PassReport, Up
from dspark.runtime.device_worker import DeviceWorker

LEAVE_S = 0.004  # longest wait of news for orders to leave, if another turn comes ...
LOOK_S = 0.05  # ... and if none comes


Unsaid = Callable[[], PassReport]  # makes a report when it is sent


class RoundNews:
    """News queued for the coordinator. surely: runs a job, an exception of which ends the stream;
    say: sends news."""

    def __init__(
        self,
        device: DeviceWorker,
        events: asyncio.AbstractEventLoop,
        surely: Callable[[Callable[[], None]], None],
        say: Callable[[Sequence[Up]], None],
    ) -> None:
        self._device, self._events, self._say = device, events, say
        self.leaving: Callable[[], bool] = lambda: False  # whether an order is not sent yet
        self._job = partial(surely, self._say_all)
        self._news: list[Up | Unsaid] = []
        self._saying = False  # whether news wait to be sent
        self._watched = False  # whether `_look` is scheduled
        self._say_by = 0.0

    def add(self, *news: Up | Unsaid) -> None:
        self._news += news

    def tell(self) -> None:
        """Schedules all news for sending, at the end of a turn. Does not wake the engine's thread
        while orders leave, as that would delay them."""
        if self._news and not self._saying:
            self._saying, self._say_by = True, time.monotonic() + LEAVE_S
        if self._saying and self._due():
            self._post()

    def _due(self) -> bool:
        """Whether news may be sent now. If not, `orders_left`, a later turn or `_look` tries
        again."""
        if not self.leaving() or time.monotonic() >= self._say_by:
            return True
        if not self._watched:
            self._watched = True
            self._events.call_soon_threadsafe(self._events.call_later, LOOK_S, self._look)
        return False

    def _post(self) -> None:
        self._device.post(self._job, self._events, computes=False)

    def orders_left(self) -> None:
        """Called on a thread of a drafter's stream, once its orders have left."""
        if self._saying:
            self._post()

    def _say_all(self) -> None:
        if not self._saying or not self._due():
            return  # sent in the meantime, or more orders are leaving
        self._saying = False
        news, self._news = self._news, []
        self._say([each() if callable(each) else each for each in news])

    def _look(self) -> None:
        """Runs on the event loop, for two cases: a drafter hangs and takes no order, or the lane is
        idle and has no turn."""
        self._watched = False
        if self._saying:
            self._post()
