"""What a lane tells of a round to whoever watches: references, no arithmetic, and nothing while nobody does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.lanes.request_state import RequestState
from dspark.rounds.control import PassReport
from dspark.rounds.events import RoundReport
from dspark.rounds.plan import Plan


@dataclass(frozen=True, slots=True)
class Reported:
    """One cohort's round, when it had been committed. Times are clock times."""

    lane: str
    ended: float
    report: PassReport
    rounds: Sequence[RoundReport]  # [n] those that were the next ones of somebody here
    tracks: Sequence[RequestState]  # [n]
    plan: Plan  # in force; the one its orders were frozen by is the same or a little older
    name_of: Callable[[int], str]  # drafter's number -> replica

    def of(self, request_id: str) -> Iterator[tuple[RequestState, int, int]]:
        """(track, row, tokens of prompt and answer before it) of every answer of a request."""
        for row, (track, said) in enumerate(zip(self.tracks, self.rounds, strict=True)):
            if track.request.id == request_id:
                yield track, row, said.committed_before


class RoundWatch(Protocol):
    """Hung on every lane of a coordinator."""

    @property
    def watched(self) -> bool:
        """Whether anybody looks: a round pays for this question alone where nobody does."""

    def reported(self, round: Reported) -> None:
        """Call it in the turn of the event loop in which the round was committed."""
