"""Whoever placed sequences in a lane, and hears what becomes of them."""

from __future__ import annotations

from typing import Protocol

from coordinator.lanes.sequence import Event
from coordinator.lanes.track import Track


class Owner(Protocol):
    """Admission, or whoever runs the first requests of a worker."""

    def ended(self, track: Track, error: Exception | None) -> None:
        """It is over: complete (`track.end` says how) or by an error."""

    def turned_away(self, track: Track) -> None:
        """The verifier has no pages for it now."""

    def preempted(self, track: Track) -> None:
        """It gave its pages to an older one and begins again."""

    def moved(self, track: Track) -> None:
        """Its verifier will leave, and it goes to another one."""

    def orphaned(self, track: Track) -> None:
        """It needs a verifier that takes it in anew."""


def hand_back(owner: Owner, track: Track, event: Event) -> None:
    """It leaves a lane unfinished."""
    if track.sequence.finished:
        return
    track.sequence.apply(event)
    track.moved = track.moved or event is Event.MOVED
    tell = {
        Event.MOVED: owner.moved,
        Event.PREEMPTED: owner.preempted,
        Event.TURNED_AWAY: owner.turned_away,
        Event.ORPHANED: owner.orphaned,
    }
    tell[event](track)
