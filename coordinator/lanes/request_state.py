"""One running request, and the life of its sequence as a table of states and events.

What an event asks for is done by who applies it.

An event the table does not list is an error, never a guess. A sequence is handed to a verifier anew after a loss; that
raises `epoch`, which changes here and nowhere else, and makes everything older stale. Where it stands within an epoch
its verifier knows (`dspark.rounds.state`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from coordinator.answers.answer import Answer, End
from coordinator.answers.output_queue import OutputSink
from coordinator.answers.request_stats import RequestStats
from coordinator.lanes.facts import DrafterPort
from coordinator.requests.request import Request
from dspark.rounds.policy import Off
from dspark.types import Refusal


class LifeState(enum.Enum):
    WAITING = "waiting"  # for admission, for pages or for a verifier
    PREFILLING = "prefilling"
    ROUNDS = "in rounds"
    FINISHED = "finished"

    __hash__ = object.__hash__  # members are singletons; the default hashes names, in Python


class LifeEvent(enum.Enum):
    PLACED = "placed"  # a lane takes it in
    TURNED_AWAY = "turned away"  # the verifier has no pages for it now
    PREFILLED = "prefilled"
    JUDGED = "judged"
    PREEMPTED = "preempted"  # another one needs its pages: it begins again with what it has said
    MOVED = "moved"  # its verifier will leave: it begins again on another one, with what it has said
    ORPHANED = "orphaned"  # its verifier is gone or does not know it
    ENDED = "ended"  # by a stop, a limit, its client or a failure

    __hash__ = object.__hash__


S, E = LifeState, LifeEvent
NEXT: dict[tuple[LifeState, LifeEvent], LifeState] = {
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
HANDED_BACK = frozenset((LifeEvent.TURNED_AWAY, LifeEvent.ORPHANED, LifeEvent.MOVED, LifeEvent.PREEMPTED))


class UnlistedLifeEvent(RuntimeError):
    """A bug: an event arrived in a state that does not know it."""


class SequenceLife:
    """Where one sequence stands."""

    def __init__(self, number: int, *, epoch: int = 0) -> None:
        self.number = number  # never used twice by one coordinator
        self.state = LifeState.WAITING
        self.epoch = self.born = epoch  # above 0 when it was resumed: lower ones have drawn already
        self.turned_away = 0  # epochs under which nothing can have been drawn

    def apply(self, event: LifeEvent) -> None:
        """Moves on."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise UnlistedLifeEvent(f"sequence {self.number} is {self.state.value} and was {event.value}") from None
        if event in HANDED_BACK:
            self.epoch += 1
            self.turned_away += event is LifeEvent.TURNED_AWAY

    @property
    def finished(self) -> bool:
        return self.state is LifeState.FINISHED


def unnoted(epoch: int) -> None:
    """Of a request that nobody can resume."""


@dataclass(slots=True, eq=False)
class RequestState:
    request: Request
    sequence: SequenceLife
    answer: Answer
    stats: RequestStats
    sink: OutputSink
    note_epoch: Callable[[int], object] = unnoted  # keeps an epoch before anything is drawn under it
    end: End | None = None  # set when the answer is complete

    drafter: DrafterPort | None = None
    last_verifier: str = ""  # replica that had it last; empty while it never left the queue
    last_drafter: str = ""  # likewise
    handovers: int = 0  # verifiers lost under it
    refused: Refusal | None = None  # what a verifier said that lets it go now, and is there
    moved: bool = False  # in order, from one that was about to leave

    @property
    def speculates(self) -> bool:
        return not isinstance(self.request.policy, Off) and self.request.max_tokens > 1

    @property
    def scores(self) -> int | None:
        """Likeliest tokens that its prefill tells of the prompt: once for a request, before anything is said."""
        return None if self.answer.index or self.answer.log.answered else self.request.prompt_logprobs
