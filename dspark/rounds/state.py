"""One sequence at the verifier: its states and events as a table, and what is known of it between
them.

An event that the table does not list is an error, never a guess. Invariant 1, one cursor: `epoch`,
`round` and `committed_len` change here and nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from dspark.rounds.bounds import kept
from dspark.rounds.events import Why
from dspark.rounds.plan import PLAIN, Terms


class State(enum.Enum):
    PREFILL = "prefill"  # its prompt is on its way in
    IDLE = "idle"  # between rounds
    ORDERED = "ordered"  # a drafter was asked for its block
    READY = "ready"  # its block is here, or stays empty
    RUNNING = "running"  # its prefix is fixed and in a pass
    HELD = "held"  # too far ahead, or its answer is full
    SETTLING = "settling"  # leaves as soon as what is being drawn has been reported
    GONE = "gone"

    __hash__ = object.__hash__  # members are singletons; the default hashes names, in Python


class Event(enum.Enum):
    PREFILLED = "prefilled"
    REFUSED = "refused by the engine"  # its prompt found no pages, or was called back
    HELD_BACK = "held back"
    LET_GO_ON = "let go on"  # by an acknowledgement or a plan
    ORDER_SENT = "ordered"
    LEFT_PLAIN = "left without a draft"
    BLOCK_CAME = "given its block"
    BLOCK_LOST = "left without its block"  # late, lost, or by another incarnation
    PASS_BEGAN = "put into a pass"
    STARVED = "out of pages"
    JUDGED = "judged"
    FAILED = "in a pass that failed"
    SETTLE = "told to settle"
    SETTLED = "settled"
    DROPPED = "dropped"

    __hash__ = object.__hash__


# By name: to look one up in its class takes longer than what is done with it, and a round does it
# often.
PREFILL, IDLE, ORDERED, READY, RUNNING, HELD, SETTLING, GONE = State
(
    PREFILLED, REFUSED, HELD_BACK, LET_GO_ON, ORDER_SENT, LEFT_PLAIN, BLOCK_CAME, BLOCK_LOST,
    PASS_BEGAN, STARVED, JUDGED, FAILED, SETTLE, SETTLED, DROPPED,
) = Event  # fmt: skip

NEXT: dict[tuple[State, Event], State] = {
    (PREFILL, PREFILLED): IDLE,
    (PREFILL, REFUSED): GONE,
    (PREFILL, SETTLE): SETTLING,  # the engine says whether its first token is drawn already
    (IDLE, HELD_BACK): HELD,
    (IDLE, LEFT_PLAIN): READY,
    (IDLE, ORDER_SENT): ORDERED,
    (IDLE, SETTLE): GONE,  # all its reports are out
    (ORDERED, BLOCK_CAME): READY,
    (ORDERED, BLOCK_LOST): READY,
    (ORDERED, SETTLE): GONE,
    (READY, PASS_BEGAN): RUNNING,
    (READY, STARVED): IDLE,
    (READY, SETTLE): GONE,
    (RUNNING, JUDGED): IDLE,
    (RUNNING, FAILED): SETTLING,
    (RUNNING, SETTLE): SETTLING,
    (HELD, LET_GO_ON): IDLE,
    (HELD, SETTLE): GONE,
    (SETTLING, PREFILLED): SETTLING,
    (SETTLING, JUDGED): SETTLING,
    (SETTLING, SETTLED): GONE,  # what was being drawn is reported, or was never drawn
    **{(state, DROPPED): GONE for state in State if state is not GONE},
}


class UnlistedEvent(RuntimeError):
    """A bug: an event arrived in a state that does not know it."""


@dataclass(slots=True, eq=False)
class SequenceState:
    """Where one sequence stands at its verifier."""

    number: int
    epoch: int
    committed_len: int  # with the anchor, once there is one
    room: int  # tokens the answer may still grow by
    stop_ids: frozenset[int]
    state: State = PREFILL
    round: int = 0  # rounds reported in this epoch, the prefill included
    acked: int = 0  # of those, rounds acknowledged
    anchor: int = -1
    full: bool = False  # a stop token or the length ended it
    held_at: float = 0.0  # when it was last held
    drafter: int = 0  # who holds its context; 0: nobody
    rows_sent: int = 0  # feature rows that drafter has, without a gap
    feeding: int = 0  # who is being sent its context
    # (drafter, rows) that came in full, taken over between rounds
    ready: tuple[int, int] | None = None
    ordered_len: int = -1  # `committed_len` of the last round that asked for a block, or might have
    starved: bool = False  # waits for somebody to give back pages
    leaving: Why | None = None  # why it settles, if the coordinator did not ask for it
    # Of the round that comes next:
    order: int = 0  # that is open
    asked: int = 0  # who was asked for its block; 0: nobody
    terms: Terms = PLAIN  # frozen when the order is sent
    block: Sequence[float] = ()  # confidences of the drafted slots that may count
    why_empty: str = ""
    prefix: int = 0

    def apply(self, event: Event) -> None:
        """Moves on."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise UnlistedEvent(
                f"sequence {self.number} is {self.state.value} and was {event.value}"
            ) from None

    def lists(self, event: Event) -> bool:
        """Whether its state knows this event."""
        return (self.state, event) in NEXT

    @property
    def ahead(self) -> int:
        """Rounds reported less rounds acknowledged."""
        return self.round - self.acked

    def left_empty(self, why: str) -> None:
        """Its block is empty. An empty block is an ordinary block, and uses up the anchor as any
        other."""
        self.why_empty, self.ordered_len = why, self.committed_len
        self.block, self.order, self.prefix = (), 0, 0

    def commit(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Moves the cursor over what a round or the prefill drew; what lies behind the end was
        never said."""
        count, self.full = kept(tokens, self.room, self.stop_ids)
        said = tuple(tokens[:count])
        self.committed_len += count
        self.room -= count
        self.anchor = said[-1] if said else self.anchor
        self.round += 1
        self.order = self.asked = self.prefix = 0
        self.terms, self.block, self.why_empty = PLAIN, (), ""
        return said
