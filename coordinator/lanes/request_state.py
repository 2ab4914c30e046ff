"""One running request, its sequence's life as a table of states and events, and its stay in a lane.

An event that the table does not list is an error; what an event requires is done by the code that
applies it. A sequence that is handed back gets a higher `epoch`, which changes here and nowhere
else and makes everything older stale. Its verifier keeps its place within an epoch
(`dspark.rounds.state`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.answers.answer import Answer, End, RequestStats
from coordinator.answers.output_queue import OutputSink
from coordinator.planning.lane_plans import Planned
from coordinator.requests.request import Request
from dspark.errors import DsparkError, InvalidRequest, Overloaded, PeerError, Unsupported
from dspark.rounds.control import Admission
from dspark.rounds.events import Admit, GoneReason, Released
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
    HELD_UP = "held up"  # the verifier is too busy for its constraint now
    PREFILLED = "prefilled"
    JUDGED = "judged"
    PREEMPTED = "preempted"  # another one needs its pages: it begins again with its tokens
    MOVED = "moved"  # its verifier will leave: it begins again on another one, with its tokens
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


class UnlistedLifeEvent(RuntimeError):
    """A bug: an event arrived in a state for which the table does not list it."""


class SequenceLife:
    """State, epoch and number of one sequence."""

    def __init__(self, number: int) -> None:
        self.number = number  # never used twice by one coordinator
        self.state = LifeState.WAITING
        self.epoch = 0  # above if resumed: lower ones were drawn under already

    def apply(self, event: LifeEvent) -> None:
        """Moves to the next state, and to the next epoch if handed back. Raises
        `UnlistedLifeEvent`."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise UnlistedLifeEvent(
                f"sequence {self.number} is {self.state.value} and was {event.value}"
            ) from None
        if self.state is LifeState.WAITING:
            # handed back: higher, whether anything was drawn under the old one or not
            self.epoch += 1

    @property
    def finished(self) -> bool:
        return self.state is LifeState.FINISHED


@dataclass(slots=True, eq=False)
class RequestState:
    request: Request
    sequence: SequenceLife
    answer: Answer
    stats: RequestStats
    sink: OutputSink
    # keeps an epoch and its target before anything is drawn; nothing where it cannot be resumed
    note_epoch: Callable[[int, str], object] = lambda epoch, target: None
    end: End | None = None  # set when the answer is complete

    begun: bool = False  # this answer, or another one of its request, has had a place
    # answers of the request of which something was committed; shared by all of them
    shown: set[int] = field(default_factory=set)
    last_verifier: str = ""  # replica that had it last; empty before it was placed
    target: str = ""  # fingerprint of what that verifier serves; empty where it is not known
    last_drafter: str = ""  # that drafts for it, or did last
    handovers: int = 0  # verifiers lost under it
    refused: Refusal | None = None  # refusal of a verifier that is up and let it go
    why_prefilled: str = "new"  # why its prompt is run, as metrics name it

    @property
    def speculates(self) -> bool:
        return not isinstance(self.request.policy, Off) and self.request.max_tokens > 1

    @property
    def scores(self) -> int | None:
        """Likeliest tokens per prompt position that its prefill reports; None for none. Only a
        request's first answer has them, before its first token."""
        asked = self.request.prompt_logprobs
        return None if asked is None or self.answer.index or self.answer.length else asked


_GONE: dict[GoneReason | None, tuple[RefusalReason, str]] = {
    GoneReason.FAILED: (RefusalReason.INTERNAL, "its pass failed"),
    GoneReason.STALE_EPOCH: (RefusalReason.STALE_CURSOR, "the verifier has seen its epoch before"),
}


@dataclass(slots=True, eq=False)
class PlacedSequence:
    """One sequence in a lane, from `take` until it has left: its progress and its drafter."""

    state: RequestState
    number: int = field(init=False)
    epoch: int = field(init=False)
    planned: Planned = field(init=False)  # as plans see it
    round: int = 0  # of the next report
    admitted: bool = False  # sent to the verifier
    prefilled: bool = False
    speculates: bool = False
    since: float = 0.0  # clock time of its admission
    heard: float = 0.0  # clock time of its last report
    turn: int = 0  # in the order of admissions
    drafter: int = 0  # number that plans name; 0: none
    fed: bool = False  # its drafter has delivered a block
    not_before: float = 0.0  # clock time before which no drafter is searched again
    rows_missing_since: float | None = None
    leaving: LifeEvent | None = None  # event to apply once it is settled
    settled_by: float = 0.0  # clock time by which it has to be released

    def __post_init__(self) -> None:
        self.number, self.epoch = self.state.sequence.number, self.state.sequence.epoch
        request = self.state.request
        self.planned = Planned(self.number, request.policy, request.weight)

    def admission(self) -> Admission:
        """The message with all that a verifier needs for its prefill and its rounds."""
        answer, request = self.state.answer, self.state.request
        ids = answer.ids()
        room, stops = max(answer.room, 1), request.stop_ids
        return Admission(
            Admit(self.number, self.epoch, len(ids), room, stops, self.drafter),
            ids,
            request.params,
            request.longest,
            self.speculates,
            request.cache_salt,
            self.state.scores,
            request.seeded,
        )

    def fate(self, said: Released) -> LifeEvent | DsparkError:
        """The event to apply now that it was released, or its error if it is refused for good."""
        in_order, refused = said.rounds == self.round, said.refusal
        if refused is not None and refused.reason is RefusalReason.NO_PAGES:
            refused = None  # `said.why` says it
        if in_order and said.why is None and self.leaving is not None:
            return self.leaving
        if in_order and said.why is GoneReason.OUT_OF_PAGES:
            return LifeEvent.PREEMPTED
        if in_order and said.why is GoneReason.NO_PAGES and refused is None and not self.prefilled:
            return self.leaving or LifeEvent.TURNED_AWAY
        if in_order and refused is not None:
            shown, reason = self.state.shown, refused.reason
            if reason is RefusalReason.INVALID or (reason is RefusalReason.BUSY and not shown):
                return _error_of(refused)
            if reason is RefusalReason.BUSY and not self.prefilled:
                return LifeEvent.HELD_UP
        if refused is None and said.why in _GONE:
            refused = Refusal(*_GONE[said.why])
        self.state.refused = refused
        return LifeEvent.ORPHANED


def _error_of(refused: Refusal) -> DsparkError:
    """The error of a request refused for good: its fault, or of a verifier that is too busy."""
    said = refused.message
    if refused.reason is RefusalReason.BUSY:
        return Overloaded(said.removeprefix("constraint: "), retry_after_s=1.0)
    field, _, problem = said.partition(": ")
    if field == "constraint" or field.startswith("sampling."):
        field = field.replace("sampling.", "sampling_params.", 1)  # as clients name it
        if problem.startswith("unsupported: "):
            return Unsupported(field, problem.removeprefix("unsupported: "))
        return InvalidRequest(field, problem)
    return PeerError(f"the verifier refused a prompt: {said}")
