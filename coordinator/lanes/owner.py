"""Whoever placed sequences in a lane, and hears what becomes of them."""

from __future__ import annotations

from typing import Protocol

from coordinator.lanes.request_state import LifeEvent, RequestState


class Owner(Protocol):
    """Admission, or whoever runs the first requests of a worker."""

    def ended(self, track: RequestState, error: Exception | None) -> None:
        """It is over: complete (`track.end` says how) or by an error."""

    def turned_away(self, track: RequestState) -> None:
        """The verifier has no pages for it now."""

    def preempted(self, track: RequestState) -> None:
        """It gave its pages to an older one and begins again."""

    def moved(self, track: RequestState) -> None:
        """Its verifier will leave, and it goes to another one."""

    def orphaned(self, track: RequestState) -> None:
        """It needs a verifier that takes it in anew."""


def hand_back(owner: Owner, track: RequestState, event: LifeEvent) -> None:
    """It leaves a lane unfinished."""
    if track.sequence.finished:
        return
    track.sequence.apply(event)
    track.moved = track.moved or event is LifeEvent.MOVED
    tell = {
        LifeEvent.MOVED: owner.moved,
        LifeEvent.PREEMPTED: owner.preempted,
        LifeEvent.TURNED_AWAY: owner.turned_away,
        LifeEvent.ORPHANED: owner.orphaned,
    }
    tell[event](track)
