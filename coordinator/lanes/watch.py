"""Reported rounds, kept only while a watch is open.

A lane hands each round over by reference, without arithmetic, and none at all without a watch, so
that a round costs one look at a list. What is kept is bounded and drops its oldest rounds;
`watching/explaining` makes messages of it when it is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from coordinator.lanes.request_state import RequestState
from dspark.errors import Overloaded
from dspark.rounds.control import PassReport
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import Plan

T = TypeVar("T")

LANE_ROUNDS = 512  # of all lanes together, between two reads of a cell's watch
REQUEST_ROUNDS = 1024  # of one request
MAX_WATCHES = 256  # at one time; one more is refused


@dataclass(frozen=True, slots=True)
class CommittedRound:
    """One cohort's committed round: references, no arithmetic. Times are clock times."""

    lane: str
    ended: float
    report: PassReport
    rounds: Sequence[RoundReport]  # [n] those applied: each the next of its sequence
    states: Sequence[RequestState]  # [n]
    why_empty: Sequence[str]  # [n] why its block was empty, as metrics name it
    plan: Plan  # in force; the one its orders were frozen by is the same or a little older
    name_of: Callable[[int], str]  # drafter's number -> replica


@dataclass(frozen=True, slots=True)
class RoundPart:
    """One answer's part in a reported round."""

    round: CommittedRound
    at: int  # which row of the cohort
    offset: int  # index in the answer of the first token it committed
    kept: int  # tokens committed, after stop tokens and limits cut the answer
    room: int  # tokens the answer could still grow by when the round began


class RoundWatch(Generic[T]):
    """One open watch; leaving its context closes it. parts: what is kept of a round."""

    def __init__(
        self, owner: Explain, parts: Callable[[CommittedRound], Iterable[T]], limit: int
    ) -> None:
        self._owner, self._parts, self._limit = owner, parts, limit
        self.wakeup = asyncio.Event()
        self._kept: deque[T] = deque(maxlen=limit)

    def taken(self) -> list[T]:
        """The parts kept since the last call."""
        taken = list(self._kept)
        self._kept.clear()
        return taken

    def put(self, round: CommittedRound) -> None:
        for part in self._parts(round):
            if len(self._kept) == self._limit:  # the oldest is dropped, and counted
                self._owner.lost()
            self._kept.append(part)
            self.wakeup.set()

    def __enter__(self) -> RoundWatch[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._owner.close(self)


def parts_of(round: CommittedRound, request_id: str) -> Iterator[RoundPart]:
    """The parts of a round that all answers of one request have."""
    for at, (state, said) in enumerate(zip(round.states, round.rounds, strict=True)):
        if state.request.id == request_id:
            answer, before = state.answer, said.committed_before
            kept = max(answer.committed_len - before, 0)
            yield RoundPart(round, at, before - answer.prompt_len, kept, answer.room + kept)


class Explain:
    """The open watches of all lanes of a coordinator. lost: called for every round that was not
    read in time."""

    def __init__(self, lost: Callable[[], None]) -> None:
        self.lost = lost
        self.watches: list[RoundWatch[Any]] = []

    def cell(self) -> RoundWatch[CommittedRound]:
        """Opens a watch of every round of every lane from now on."""
        return self._open(lambda round: (round,), LANE_ROUNDS)

    def request(self, request_id: str) -> RoundWatch[RoundPart]:
        """Opens a watch of one request's rounds from now on; the request need not run yet."""
        return self._open(partial(parts_of, request_id=request_id), REQUEST_ROUNDS)

    def _open(self, parts: Callable[[CommittedRound], Iterable[T]], limit: int) -> RoundWatch[T]:
        if len(self.watches) >= MAX_WATCHES:
            raise Overloaded(f"{MAX_WATCHES} watch already", retry_after_s=1.0)
        watch = RoundWatch(self, parts, limit)
        self.watches.append(watch)
        return watch

    def close(self, watch: RoundWatch[Any]) -> None:
        self.watches.remove(watch)

    def reported(self, round: CommittedRound) -> None:
        """Hands a round to all watches. Call it in the event loop's turn that committed it."""
        for watch in self.watches:
            watch.put(round)
