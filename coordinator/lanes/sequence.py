"""The life of one sequence: states and events as a table. Pure; what an event asks for is done by who applies it.

An event the table does not list is an error, never a guess. A sequence is handed to a verifier anew after a loss; that
raises `epoch`, which changes here and nowhere else, and makes everything older stale. Where it stands within an epoch
its verifier knows (`dspark.rounds.state`).
"""

from __future__ import annotations

import enum


class State(enum.Enum):
    WAITING = "waiting"  # for admission, for pages or for a verifier
    PREFILLING = "prefilling"
    ROUNDS = "in rounds"
    FINISHED = "finished"

    __hash__ = object.__hash__  # members are singletons; the default hashes names, in Python


class Event(enum.Enum):
    PLACED = "placed"  # a lane takes it in
    TURNED_AWAY = "turned away"  # the verifier has no pages for it now
    PREFILLED = "prefilled"
    JUDGED = "judged"
    PREEMPTED = "preempted"  # another one needs its pages: it begins again with what it has said
    MOVED = "moved"  # its verifier will leave: it begins again on another one, with what it has said
    ORPHANED = "orphaned"  # its verifier is gone or does not know it
    ENDED = "ended"  # by a stop, a limit, its client or a failure

    __hash__ = object.__hash__


S, E = State, Event
NEXT: dict[tuple[State, Event], State] = {
    (S.WAITING, E.PLACED): S.PREFILLING,
    (S.PREFILLING, E.TURNED_AWAY): S.WAITING,
    (S.PREFILLING, E.PREFILLED): S.ROUNDS,
    (S.ROUNDS, E.JUDGED): S.ROUNDS,
    (S.PREFILLING, E.PREEMPTED): S.WAITING,
    (S.ROUNDS, E.PREEMPTED): S.WAITING,
    (S.PREFILLING, E.MOVED): S.WAITING,
    (S.ROUNDS, E.MOVED): S.WAITING,
    (S.PREFILLING, E.ORPHANED): S.WAITING,
    (S.ROUNDS, E.ORPHANED): S.WAITING,
    (S.WAITING, E.ENDED): S.FINISHED,
    (S.PREFILLING, E.ENDED): S.FINISHED,
    (S.ROUNDS, E.ENDED): S.FINISHED,
}


# The next verifier takes it in under a higher epoch, whether anything was drawn under this one or not.
HANDED_BACK = frozenset((Event.TURNED_AWAY, Event.ORPHANED, Event.MOVED, Event.PREEMPTED))


class UnlistedEvent(RuntimeError):
    """A bug: an event arrived in a state that does not know it."""


class Sequence:
    """Where one sequence stands."""

    def __init__(self, number: int, *, epoch: int = 0) -> None:
        self.number = number  # never used twice by one coordinator
        self.state = State.WAITING
        self.epoch = self.born = epoch  # above 0 when it was resumed: lower ones have drawn already
        self.turned_away = 0  # epochs under which nothing can have been drawn

    def apply(self, event: Event) -> None:
        """Moves on."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise UnlistedEvent(f"sequence {self.number} is {self.state.value} and was {event.value}") from None
        if event in HANDED_BACK:
            self.epoch += 1
            self.turned_away += event is Event.TURNED_AWAY

    @property
    def finished(self) -> bool:
        return self.state is State.FINISHED
