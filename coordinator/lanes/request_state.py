"""One running request, the life of its sequence as a table of states and events, and its stay in a
lane.

What an event asks for is done by who applies it.

An event the table does not list is an error, never a guess. A sequence is handed to a verifier anew
after a loss; that raises `epoch`, which changes here and nowhere else, and makes everything older
stale. Where it stands within an epoch its verifier knows (`dspark.rounds.state`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.answers.answer import Answer, End, RequestStats
from coordinator.answers.output_queue import OutputSink
from coordinator.lanes.facts import DrafterPort
from coordinator.requests.request import Request
from dspark.errors import DsparkError, InvalidRequest, Overloaded, PeerError, Unsupported
from dspark.rounds.control import Admission
from dspark.rounds.events import Admit, Released, Why
from dspark.rounds.policy import Off
from dspark.types import Refusal, RefusalReason


class LifeState(enum.Enum):
    WAITING = "waiting"  # for admission, for pages or for a verifier
    PREFILLING = "prefilling"
    ROUNDS = "in rounds"
    FINISHED = "finished"

    __hash__ = object.__hash__  # members are singletons; the default hashes names, in Python


class LifeEvent(enum.Enum):
    PLACED = "placed"  # a lane takes it in
    TURNED_AWAY = "turned away"  # the verifier has no pages for it now
    HELD_UP = "held up"  # the verifier has no time for the form of its answer now
    PREFILLED = "prefilled"
    JUDGED = "judged"
    PREEMPTED = "preempted"  # another one needs its pages: it begins again with what it has said
    # its verifier will leave: it begins again on another one, with what it has said
    MOVED = "moved"
    ORPHANED = "orphaned"  # its verifier is gone or does not know it
    ENDED = "ended"  # by a stop, a limit, its client or a failure

    __hash__ = object.__hash__


S, E = LifeState, LifeEvent
NEXT: dict[tuple[LifeState, LifeEvent], LifeState] = {
    (S.WAITING, E.PLACED): S.PREFILLING,
    (S.PREFILLING, E.TURNED_AWAY): S.WAITING,
    (S.PREFILLING, E.HELD_UP): S.WAITING,
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


# The next verifier takes it in under a higher epoch, whether anything was drawn under this one or
# not.
HANDED_BACK = frozenset(
    (
        LifeEvent.TURNED_AWAY,
        LifeEvent.ORPHANED,
        LifeEvent.MOVED,
        LifeEvent.PREEMPTED,
        LifeEvent.HELD_UP,
    )
)


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
            raise UnlistedLifeEvent(
                f"sequence {self.number} is {self.state.value} and was {event.value}"
            ) from None
        if event in HANDED_BACK:
            self.epoch += 1
            self.turned_away += event in (LifeEvent.TURNED_AWAY, LifeEvent.HELD_UP)

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
    # keeps an epoch before anything is drawn under it
    note_epoch: Callable[[int], object] = unnoted
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
        """Likeliest tokens that its prefill tells of the prompt: once for a request, before
        anything is said."""
        asked = self.request.prompt_logprobs
        return None if asked is None or self.answer.index or self.answer.log.answered else asked


_GONE: dict[Why | None, tuple[RefusalReason, str]] = {
    Why.FAILED: (RefusalReason.INTERNAL, "its pass failed"),
    Why.STALE_EPOCH: (RefusalReason.STALE_CURSOR, "the verifier has seen its epoch before"),
}


@dataclass(slots=True, eq=False)
class Placed:
    """One sequence in a lane: how far it is, and who drafts for it. From `take` until it has left
    the lane."""

    state: RequestState
    number: int = field(init=False)
    epoch: int = field(init=False)
    round: int = 0  # of the next report
    admitted: bool = False  # the verifier was told of it
    prefilled: bool = False
    speculates: bool = False
    since: float = 0.0  # clock time: it was admitted
    heard: float = 0.0  # clock time: its last report came
    turn: int = 0  # among those whose prompts were asked for
    drafter: int = 0  # whom plans name; 0: nobody
    spared: bool = False  # it could have one, and drafts do not pay
    fed: bool = False  # a block of it came
    key: int = 0  # drafter and bucket
    not_before: float = 0.0  # clock time before which no drafter is looked for again
    rows_missing_since: float | None = None
    leaving: LifeEvent | None = None  # what becomes of it once it is settled
    settled_by: float = 0.0  # clock time
    refused: Refusal | None = None  # what the verifier said of it

    def __post_init__(self) -> None:
        self.number, self.epoch = self.state.sequence.number, self.state.sequence.epoch

    @property
    def why_prefilled(self) -> str:
        """What its prompt is run for, as metrics name it."""
        state = self.state
        if state.handovers or state.moved:
            return "handover"
        if state.sequence.epoch > state.sequence.born + state.sequence.turned_away:
            return "preempted"
        return "resumed" if state.sequence.born else "new"

    def admission(self) -> Admission:
        """What a verifier needs to run its prompt, and its rounds from then on."""
        answer, request = self.state.answer, self.state.request
        ids = answer.log.ids()
        return Admission(
            Admit(
                self.number,
                self.epoch,
                len(ids),
                max(answer.room, 1),
                request.stop_ids,
                self.drafter,
            ),
            ids,
            request.params,
            request.longest,
            self.speculates,
            request.cache_salt,
            self.state.scores,
            request.seeded,
        )

    def fate(self, said: Released) -> LifeEvent | None:
        """What becomes of it, now that the verifier let it go; None: it is refused for good."""
        in_order = said.rounds == self.round
        if self.prefilled:  # else it may have been refused before anybody looked at its prompt
            in_order = in_order and said.committed_len == len(self.state.answer.log)
        if in_order and said.why is None and self.leaving is not None:
            return self.leaving
        if in_order and said.why is Why.OUT_OF_PAGES:
            return LifeEvent.PREEMPTED
        if in_order and said.why is Why.NO_PAGES and self.refused is None and not self.prefilled:
            return self.leaving or LifeEvent.TURNED_AWAY
        if in_order and self.refused is not None:
            begun, reason = self.state.answer.log.answered, self.refused.reason
            if reason is RefusalReason.INVALID or (reason is RefusalReason.BUSY and not begun):
                return None
            if reason is RefusalReason.BUSY and not self.prefilled:
                return LifeEvent.HELD_UP
        if self.refused is None and said.why in _GONE:
            self.refused = Refusal(*_GONE[said.why])
        self.state.refused = self.refused
        return LifeEvent.ORPHANED

    def refusal(self) -> DsparkError:
        """Why it is refused for good: for its constraint, which is its client's, or for anything
        else."""
        said = self.refused.message if self.refused is not None else ""
        if self.refused is not None and self.refused.reason is RefusalReason.BUSY:
            return Overloaded(said.removeprefix("constraint: "), retry_after_s=1.0)
        if said.startswith("constraint: unsupported: "):
            return Unsupported("constraint", said.removeprefix("constraint: unsupported: "))
        if said.startswith("constraint: "):
            return InvalidRequest("constraint", said.removeprefix("constraint: "))
        return PeerError(f"the verifier refused a prompt: {said}")
