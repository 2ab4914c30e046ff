"""A pass as a verifier reported it, kept for whoever explains rounds: references, no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from coordinator.lanes.track import Track
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
    tracks: Sequence[Track]  # [n]
    plan: Plan  # in force; the one its orders were frozen by is the same or a little older
    name_of: Callable[[int], str]  # drafter's number -> replica

    def of(self, request_id: str) -> Iterator[tuple[Track, int, int]]:
        """(track, row, tokens of prompt and answer before it) of every answer of a request."""
        for row, (track, said) in enumerate(zip(self.tracks, self.rounds, strict=True)):
            if track.request.id == request_id:
                yield track, row, said.committed_before
