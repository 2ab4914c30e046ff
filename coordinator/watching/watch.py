"""Reported rounds, kept only while somebody watches.

A lane hands each round over as it is: references, no arithmetic, and nothing at all while nobody watches, so that a
round pays for one look at a flag. What is kept is bounded and falls out at the old end; `explaining` makes words and
numbers of it when it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from coordinator.lanes.conduct import Reported
from dspark.errors import Overloaded

T = TypeVar("T")

LANE_ROUNDS = 512  # of all lanes together, between two looks of whoever watches the cell
REQUEST_ROUNDS = 1024  # of one request
MAX_WATCHES = 256  # at one time; one more is refused


@dataclass(frozen=True, slots=True)
class RoundPart:
    """One answer's part in a reported round."""

    round: Reported
    at: int  # which row of the cohort
    offset: int  # index in the answer of the first token it committed
    kept: int  # tokens committed, after stop tokens and limits cut the answer
    room: int  # tokens the answer could still grow by when the round began


class Watch:
    """What somebody watches: rounds of the cell, or an answer's parts of them. Close it by leaving the context."""

    def __init__(self, owner: Explain, request: str | None, limit: int) -> None:
        self.request, self._limit = request, limit
        self.wakeup = asyncio.Event()
        self._owner = owner
        self._rounds: deque[Reported] = deque(maxlen=limit)
        self._parts: deque[RoundPart] = deque(maxlen=limit)

    def rounds(self) -> list[Reported]:
        """Those since the last call."""
        taken = list(self._rounds)
        self._rounds.clear()
        return taken

    def parts(self) -> list[RoundPart]:
        """Those since the last call."""
        taken = list(self._parts)
        self._parts.clear()
        return taken

    def put(self, round: Reported) -> None:
        if self.request is None:
            self._put(self._rounds, round)
            return
        for state, at, before in round.of(self.request):
            log = state.answer.log
            kept = max(len(log) - before, 0)
            self._put(self._parts, RoundPart(round, at, before - log.prompt_len, kept, state.answer.room + kept))
            self.wakeup.set()

    def _put(self, queue: deque[T], item: T) -> None:
        """The oldest goes, counted, when it is full."""
        if len(queue) == self._limit:
            self._owner.lost()
        queue.append(item)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.close(self)


class Explain:
    """Keeps `RoundWatch`, for all lanes of a coordinator. lost: called for every round that was not read in time."""

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        self.lost = lost
        self.watched = False
        self._watches: list[Watch] = []

    def cell(self) -> Watch:
        """Every round of every lane from now on."""
        return self._open(None, LANE_ROUNDS)

    def request(self, request_id: str) -> Watch:
        """The rounds of one request from now on; it need not run yet."""
        return self._open(request_id, REQUEST_ROUNDS)

    def _open(self, request: str | None, limit: int) -> Watch:
        if len(self._watches) >= MAX_WATCHES:
            raise Overloaded(f"{MAX_WATCHES} watch already", retry_after_s=1.0)
        watch = Watch(self, request, limit)
        self._watches.append(watch)
        self.watched = True
        return watch

    def close(self, watch: Watch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
        self.watched = bool(self._watches)

    def reported(self, round: Reported) -> None:
        """Call it in the turn of the event loop in which the round was committed."""
        for watch in self._watches:
            watch.put(round)
