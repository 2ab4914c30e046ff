"""The life of one sequence: states and events as a table. Pure; what an event asks for is done by who applies it.

An event the table does not list is an error, never a guess. Invariant 1, one cursor: `committed_len`, `epoch` and
`round` are derived here and nowhere else. A sequence is handed to a verifier anew after a loss; that raises `epoch`,
starts its rounds at 0 again, and makes everything older stale.
"""

from __future__ import annotations

import enum

from coordinator.answers.commit_log import CommitLog
from dspark.types import Cursor


class State(enum.Enum):
    WAITING = "waiting"  # for admission, for pages or for a verifier
    PREFILLING = "prefilling"
    READY = "ready"  # between rounds
    DRAFTING = "drafting"
    VERIFYING = "verifying"
    FINISHED = "finished"

    __hash__ = object.__hash__  # members are singletons; the default hashes names, in Python


class Event(enum.Enum):
    PLACED = "placed"  # a lane takes it in
    TURNED_AWAY = "turned away"  # the verifier has no pages for it now
    PREFILLED = "prefilled"
    GATHERED = "gathered"  # a round begins with it
    SCHEDULED = "scheduled"  # its block, empty or not, is cut to a prefix
    JUDGED = "judged"
    DECLINED = "declined"  # its draft was refused, or no page was left: the same anchor goes again without one
    PREEMPTED = "preempted"  # another one needs its pages: it begins again with what it has said
    MOVED = "moved"  # its verifier will leave: it begins again on another one, with what it has said
    ORPHANED = "orphaned"  # its verifier is gone or does not know it
    ENDED = "ended"  # by a stop, a limit, its client or a failure

    __hash__ = object.__hash__


NEXT: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.PLACED): State.PREFILLING,
    (State.PREFILLING, Event.TURNED_AWAY): State.WAITING,
    (State.PREFILLING, Event.PREFILLED): State.READY,
    (State.READY, Event.GATHERED): State.DRAFTING,
    (State.DRAFTING, Event.SCHEDULED): State.VERIFYING,  # an empty block is a block
    (State.VERIFYING, Event.JUDGED): State.READY,
    (State.READY, Event.JUDGED): State.READY,  # by a verifier that runs its rounds by itself
    (State.VERIFYING, Event.DECLINED): State.READY,
    (State.PREFILLING, Event.PREEMPTED): State.WAITING,
    (State.READY, Event.PREEMPTED): State.WAITING,
    (State.DRAFTING, Event.PREEMPTED): State.WAITING,
    (State.VERIFYING, Event.PREEMPTED): State.WAITING,
    (State.PREFILLING, Event.MOVED): State.WAITING,
    (State.READY, Event.MOVED): State.WAITING,
    (State.DRAFTING, Event.MOVED): State.WAITING,
    (State.VERIFYING, Event.MOVED): State.WAITING,
    (State.PREFILLING, Event.ORPHANED): State.WAITING,
    (State.READY, Event.ORPHANED): State.WAITING,
    (State.DRAFTING, Event.ORPHANED): State.WAITING,
    (State.VERIFYING, Event.ORPHANED): State.WAITING,
    (State.WAITING, Event.ENDED): State.FINISHED,
    (State.PREFILLING, Event.ENDED): State.FINISHED,
    (State.READY, Event.ENDED): State.FINISHED,
    (State.DRAFTING, Event.ENDED): State.FINISHED,
    (State.VERIFYING, Event.ENDED): State.FINISHED,
}


# The next verifier takes it in under a higher epoch, whether anything was drawn under this one or not.
HANDED_BACK = frozenset((Event.TURNED_AWAY, Event.ORPHANED, Event.MOVED, Event.PREEMPTED))


class UnlistedEvent(RuntimeError):
    """A bug: an event arrived in a state that does not know it."""


class Sequence:
    """Where one sequence stands."""

    def __init__(self, number: int, log: CommitLog, *, epoch: int = 0) -> None:
        self.number = number  # never used twice by one coordinator
        self.log = log
        self.state = State.WAITING
        self.epoch = self.born = epoch  # above 0 when it was resumed: lower ones have drawn already
        self.turned_away = 0  # epochs under which nothing can have been drawn
        self.round = 0  # rounds finished in this epoch, the prefill included
        self._cursor = Cursor(number, epoch, 0, len(log))

    def apply(self, event: Event) -> None:
        """Moves on."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise UnlistedEvent(f"sequence {self.number} is {self.state.value} and was {event.value}") from None
        if event in (Event.PREFILLED, Event.JUDGED):
            self.round += 1
        elif event in HANDED_BACK:
            self.epoch += 1
            self.round = 0
            self.turned_away += event is Event.TURNED_AWAY

    @property
    def cursor(self) -> Cursor:
        made, length = self._cursor, len(self.log)
        if made.committed_len != length or made.round != self.round or made.epoch != self.epoch:
            made = self._cursor = Cursor(self.number, self.epoch, self.round, length)
        return made

    @property
    def finished(self) -> bool:
        return self.state is State.FINISHED
