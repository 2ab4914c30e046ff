"""What a coordinator is to hear of its rounds: made and said behind the turns, once orders have left.

Nobody waits for it, and whoever makes it while an order is on its way out would be in the way of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dspark.rounds.control import PassReport, Up

LEAVE_S = 0.004  # after which news wait no longer than to the next turn for orders to leave


class Unsaid(NamedTuple):
    """News that are made when they are told."""

    made: Callable[[], PassReport]


class RoundNews:
    """post: runs a job on the engine's thread; say: takes news further; leaving: whether an order is on its way out."""

    def __init__(
        self,
        post: Callable[[Callable[[], None]], None],
        say: Callable[[Sequence[Up]], None],
        leaving: Callable[[], bool],
    ) -> None:
        self._post, self._say, self._leaving = post, say, leaving
        self._news: list[Up | Unsaid] = []
        self._saying = self._held_back = False  # whether some are about to be said, and wait for orders to leave
        self._say_by = 0.0

    def add(self, *news: Up | Unsaid) -> None:
        self._news += news

    def tell(self) -> None:
        """At the end of a turn: all that came is about to be said."""
        if self._news and not self._saying:
            self._saying, self._say_by = True, time.monotonic() + LEAVE_S
            self._post(self._say_all)
        elif self._held_back and time.monotonic() >= self._say_by:
            self._post(self._say_all)

    def orders_left(self) -> None:
        """On a thread of a drafter's stream."""
        if self._held_back:
            self._post(self._say_all)

    def _say_all(self) -> None:
        if not self._saying:
            return  # it was said in the meantime
        self._held_back = True
        if self._leaving() and time.monotonic() < self._say_by:
            return  # again when they have left, or in a later turn
        self._saying = self._held_back = False
        news, self._news = self._news, []
        self._say([each.made() if isinstance(each, Unsaid) else each for each in news])
