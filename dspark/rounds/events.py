"""What `RoundLoop` is told and what it asks for: plain tuples, without tensors, streams or tokens
of a block.

Ids, probabilities and rows of a block stay with whoever drives the loop, who finds them by order
and sequence. Orders and passes have numbers that are never used twice by one loop.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple


class How(enum.Enum):
    """How a sequence is released."""

    SETTLE = "settle"  # what was drawn is reported first: for everything that is decided
    DROP = "drop"  # at once: after its end, or when its client left


class Why(enum.Enum):
    """Why a sequence is gone that the coordinator did not release."""

    NO_PAGES = "no pages"  # its prompt did not fit
    OUT_OF_PAGES = "out of pages"  # the youngest makes room
    FAILED = "failed"  # its pass did, or it could not be in one
    # admitted under an epoch that is not above all seen, or beside itself
    STALE_EPOCH = "stale epoch"


# Events in.


class Admit(NamedTuple):
    """A sequence arrives; its tokens are the driver's."""

    sequence: int
    epoch: int
    prompt_len: int
    room: int  # tokens the answer may grow by
    stop_ids: frozenset[int] = frozenset()
    drafter: int = 0  # 0: nobody drafts for it yet


class Prefilled(NamedTuple):
    sequence: int
    epoch: int
    token: int  # its anchor


class PrefillRefused(NamedTuple):
    """Its prompt found no pages, or was called back before its first token was drawn."""

    sequence: int
    epoch: int


class Acknowledged(NamedTuple):
    """All rounds up to this one are in the commit log. Cumulative."""

    sequence: int
    epoch: int
    through_round: int


class Release(NamedTuple):
    sequence: int
    epoch: int
    how: How


class Keep(NamedTuple):
    """Everything that is wanted, now and then: a word of what else was dropped got lost."""

    wanted: frozenset[tuple[int, int]]  # sequence, epoch


class BlocksCame(NamedTuple):
    """A drafter's answer to an order, a row for each of the order's."""

    order: int
    confidence: Sequence[Sequence[float]]  # of the drafted slots; an empty row is an empty block
    watermarks: Sequence[int]  # feature rows the drafter holds without a gap
    why_empty: Sequence[str] = ()  # of each row, "" for a block that is not empty


class DrafterLost(NamedTuple):
    """Its stream broke, or somebody else answers there now."""

    drafter: int
    why: str = "lost"


class DrafterReady(NamedTuple):
    """So many rows of a sequence have come to a drafter over the bulk stream."""

    drafter: int
    sequence: int
    epoch: int
    watermark: int


class Drawn(NamedTuple):
    """What a pass drew for one of its rows."""

    tokens: tuple[int, ...]  # the accepted ones and the target's own; none where nothing was drawn
    forced: tuple[bool, ...] = ()  # see `InForm`
    forbidden: bool = False
    spoilt: bool = False  # its block cannot have been drafted, and counted as empty

    @property
    def accepted(self) -> int:
        return len(self.tokens) - 1


class PassEnded(NamedTuple):
    number: int
    drawn: Sequence[Drawn]  # a row for each of the pass's


class SessionLost(NamedTuple):
    """The coordinator is gone; so is everything that was held for it."""


# Actions out. They are to be carried out in order.


class Prefill(NamedTuple):
    sequence: int
    epoch: int


class CallBackPrefill(NamedTuple):
    """To be answered by Prefilled where the first token is drawn already, and by PrefillRefused
    where it is not."""

    sequence: int
    epoch: int


class OpenAtDrafter(NamedTuple):
    drafter: int
    sequence: int
    epoch: int


class CloseAtDrafter(NamedTuple):
    drafter: int
    sequence: int
    epoch: int


class SendRows(NamedTuple):
    """Feature rows start .. stop - 1, over the bulk stream, those that are not on their way: rows
    of a prompt may go to its drafter as they are made. To be answered by DrafterReady when they
    have come."""

    drafter: int
    sequence: int
    epoch: int
    start: int
    stop: int


class OrderRow(NamedTuple):
    sequence: int
    epoch: int
    round: int
    committed_len: int
    anchor: int
    slots: int
    first_row: int  # feature rows from here to committed_len - 2 travel with the order


class SendOrder(NamedTuple):
    """Rows of committed tokens and the order for the next block, in one message."""

    order: int
    drafter: int
    rows: Sequence[OrderRow]


class PassRow(NamedTuple):
    """The anchor and the first `prefix` slots of the block that order `order` brought."""

    sequence: int
    epoch: int
    round: int
    committed_len: int
    anchor: int
    order: int
    prefix: int


class RunPass(NamedTuple):
    number: int
    rows: Sequence[PassRow]


class RoundReport(NamedTuple):
    """One sequence's round, for the coordinator. Round 0 is the prefill."""

    sequence: int
    epoch: int
    round: int
    committed_before: int
    tokens: tuple[int, ...]
    accepted: int = 0  # before the end of the answer cut it
    verified: int = 0
    confidence: Sequence[float] = ()  # of the drafted slots
    why_empty: str = ""
    drafter: int = 0
    forced: tuple[
        bool, ...
    ] = ()  # of each token, whether its form left nothing else; empty where all had a choice
    forbidden: bool = False  # whether a form forbids the drafted token behind the accepted ones


class Report(NamedTuple):
    """All rounds of one pass."""

    number: int  # of the pass; 0 for a prefill
    plan: int
    rounds: Sequence[RoundReport]


class Released(NamedTuple):
    """It is gone, and nothing that was drawn for it is still to come."""

    sequence: int
    epoch: int
    rounds: int  # reported
    committed_len: int
    why: Why | None = None  # None: as the coordinator wished


class DrafterEvent(NamedTuple):
    """How the verifier finds a drafter; health is per pair."""

    drafter: int
    what: str  # late, full, silent, or lost or malformed and why


Told = (
    Admit
    | Prefilled
    | PrefillRefused
    | Acknowledged
    | Release
    | Keep
    | BlocksCame
    | DrafterLost
    | DrafterReady
    | PassEnded
    | SessionLost
)
Action = (
    Prefill
    | CallBackPrefill
    | OpenAtDrafter
    | CloseAtDrafter
    | SendRows
    | SendOrder
    | RunPass
    | Report
    | Released
    | DrafterEvent
)
