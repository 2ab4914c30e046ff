"""The state machine of one sequence at the verifier: a table of states and events, and its data.

An event that the table does not list is an error, never a guess. Invariant 1, one cursor: `epoch`,
`round` and `committed_len` change here and nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dspark.rounds.bounds import kept
from dspark.rounds.events import GoneReason
from dspark.rounds.plan import PLAIN, BlockTerms
from dspark.types import Refusal


class State(enum.Enum):
    PREFILL = "prefill"  # its prompt is being computed
    IDLE = "idle"  # between rounds
    ORDERED = "ordered"  # its block is ordered from a drafter
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


# By name: looking a member up in its class takes longer than its use, and rounds do so often.
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
    """A bug: an event arrived in a state for which the table does not list it."""


@dataclass(slots=True, eq=False)
class SequenceState:
    """The state, cursor and next round of one sequence at its verifier."""

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
    named: int = 0  # the drafter to use: it gets the context once drafts are planned; 0: none
    drafter: int = 0  # the one that holds its context; 0: none
    rows_sent: int = 0  # feature rows that were sent to that drafter, without a gap
    rows_held: int = 0  # of them, rows that it is known to have
    feeding: int = 0  # the drafter that is being sent its context; 0: none
    # (drafter, rows that arrived), to take over between rounds
    ready: tuple[int, int] | None = None
    ordered_len: int = -1  # `committed_len` of the last round that asked for a block, or might have
    starved: bool = False  # waits for pages to be freed
    leaving: GoneReason | None = None  # why it settles, if the coordinator did not ask for it
    refusal: Refusal | None = None  # of its prompt or its last pass
    # The next round:
    order: int = 0  # number of its order; 0: none
    asked: int = 0  # the drafter its block was ordered from; 0: none
    terms: BlockTerms = PLAIN  # frozen when the order is sent
    block: Sequence[float] = ()  # confidences of the drafted slots that may count
    answer: Any = None  # what the driver keeps of its order's blocks; None: it has no block
    place: int = 0  # of its block there
    why_empty: str = ""
    prefix: int = 0

    def apply(self, event: Event) -> None:
        """Moves to the state that the table lists; raises UnlistedEvent where it lists none."""
        try:
            self.state = NEXT[self.state, event]
        except KeyError:
            raise UnlistedEvent(
                f"sequence {self.number} is {self.state.value} and was {event.value}"
            ) from None

    def lists(self, event: Event) -> bool:
        """Whether the table lists this event for its state."""
        return (self.state, event) in NEXT

    @property
    def ahead(self) -> int:
        """Rounds reported less rounds acknowledged."""
        return self.round - self.acked

    def left_empty(self, why: str) -> None:
        """Makes its block empty. An empty block is an ordinary block, and uses up the anchor like
        any other."""
        self.why_empty, self.ordered_len = why, self.committed_len
        self.block, self.answer, self.order, self.prefix = (), None, 0, 0

    def commit(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Moves the cursor past the tokens that a round or the prefill drew; returns those up to
        the end of the answer."""
        count, self.full = kept(tokens, self.room, self.stop_ids)
        said = tuple(tokens[:count])
        self.committed_len += count
        self.room -= count
        self.anchor = said[-1] if said else self.anchor
        self.round += 1
        self.order = self.asked = self.prefix = 0
        self.terms, self.block, self.answer, self.why_empty = PLAIN, (), None, ""
        return said
