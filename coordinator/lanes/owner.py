"""Whoever placed sequences in a lane, and hears what becomes of them."""

from __future__ import annotations

from typing import Protocol

from coordinator.lanes.request_state import LifeEvent, RequestState


class Owner(Protocol):
    """Admission, or whoever runs the first requests of a worker."""

    def ended(self, state: RequestState, error: Exception | None) -> None:
        """It is over: complete (`state.end` says how) or by an error."""

    def turned_away(self, state: RequestState) -> None:
        """The verifier has no pages for it now."""

    def preempted(self, state: RequestState) -> None:
        """It gave its pages to an older one and begins again."""

    def moved(self, state: RequestState) -> None:
        """Its verifier will leave, and it goes to another one."""

    def orphaned(self, state: RequestState) -> None:
        """It needs a verifier that takes it in anew."""


def hand_back(owner: Owner, state: RequestState, event: LifeEvent) -> None:
    """It leaves a lane unfinished."""
    if state.sequence.finished:
        return
    state.sequence.apply(event)
    state.moved = state.moved or event is LifeEvent.MOVED
    tell = {
        LifeEvent.MOVED: owner.moved,
        LifeEvent.PREEMPTED: owner.preempted,
        LifeEvent.TURNED_AWAY: owner.turned_away,
        LifeEvent.ORPHANED: owner.orphaned,
    }
    tell[event](state)
