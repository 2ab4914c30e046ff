"""The events that `RoundLoop` takes and the actions it returns: plain tuples, without tensors,
streams or tokens of a block.

Token ids, probabilities and rows of a block stay with the loop's driver: it hands over its record
of an answer with the blocks, and gets it back with the rows of a pass. A loop never uses the number
of an order or a pass twice.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from dspark.types import Refusal, Verdict


class ReleaseMode(enum.Enum):
    """How a sequence is released."""

    SETTLE = "settle"  # after a report of what was drawn: for every decision to take it out
    DROP = "drop"  # at once: after its end, or when its client left


class GoneReason(enum.Enum):
    """Why a sequence is gone that the coordinator did not release."""

    NO_PAGES = "no pages"  # its prompt did not fit
    OUT_OF_PAGES = "out of pages"  # the youngest sequence makes room
    FAILED = "failed"  # its pass failed, or it could not be put into one
    # admitted under an epoch that is not above all seen, or while it is still here
    STALE_EPOCH = "stale epoch"


# Events in.


class Admit(NamedTuple):
    """A sequence arrives; the driver keeps its tokens."""

    sequence: int
    epoch: int
    prompt_len: int
    room: int  # tokens the answer may grow by
    stop_ids: frozenset[int] = frozenset()
    drafter: int = 0  # 0: none yet


class Prefilled(NamedTuple):
    sequence: int
    epoch: int
    token: int  # its anchor


class PrefillRefused(NamedTuple):
    """A prompt found no pages, or was called back before its first token was drawn."""

    sequence: int
    epoch: int
    refusal: Refusal | None = None


class Acknowledged(NamedTuple):
    """All rounds up to this one are in the commit log. Cumulative."""

    sequence: int
    epoch: int
    through_round: int


class Release(NamedTuple):
    sequence: int
    epoch: int
    how: ReleaseMode


class KeepSequences(NamedTuple):
    """Lists all wanted sequences, now and then: for any other here, a release was lost."""

    wanted: frozenset[tuple[int, int]]  # sequence, epoch


class BlocksCame(NamedTuple):
    """The blocks of an order have arrived, one for each row of the order; whoever reads them has
    checked that there are as many."""

    order: int
    confidence: Sequence[Sequence[float]]  # of the drafted slots; an empty row is an empty block
    watermarks: Sequence[int]  # feature rows the drafter holds without a gap
    why_empty: Sequence[str] = ()  # of each row, "" for a block that is not empty
    answer: Any = None  # the driver's record of it, never looked into


class DrafterLost(NamedTuple):
    """A drafter's stream broke, or another process answers at its address."""

    drafter: int
    why: str = "lost"


class DrafterReady(NamedTuple):
    """A drafter holds rows of a sequence up to a watermark, received over the bulk stream."""

    drafter: int
    sequence: int
    epoch: int
    watermark: int


class PassEnded(NamedTuple):
    number: int
    # for each row of the pass; None: nothing was drawn
    drawn: Sequence[Verdict | Refusal | None]


# Actions out, to be carried out in order.


class Prefill(NamedTuple):
    sequence: int
    epoch: int


class CallBackPrefill(NamedTuple):
    """Cancels a prefill. The driver answers with Prefilled where the first token is drawn already,
    else with PrefillRefused."""

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
    """Sends feature rows start .. stop - 1 over the bulk stream, but for those already on their
    way: rows of a prompt may be sent as they are made. The driver answers with DrafterReady when
    they have arrived."""

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
    """A sequence in a pass: its anchor, and the first `prefix` slots of its block, the one at
    `place` of `answer`."""

    sequence: int
    epoch: int
    round: int
    committed_len: int
    anchor: int
    prefix: int
    answer: Any  # None: it has no block
    place: int


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
    forced: tuple[bool, ...] = ()  # by token, whether its grammar allowed no other; empty: none
    forbidden: bool = False  # whether a grammar forbids the draft after the accepted ones


class Report(NamedTuple):
    """All rounds of one pass."""

    number: int  # of the pass; 0 for a prefill
    rounds: Sequence[RoundReport]


class Released(NamedTuple):
    """A sequence is gone, and no report of it follows."""

    sequence: int
    epoch: int
    rounds: int  # reported
    why: GoneReason | None = None  # None: the coordinator released it
    refusal: Refusal | None = None  # why in words, where the engine refused it


class DrafterEvent(NamedTuple):
    """The health of a drafter as this verifier sees it; health is per pair."""

    drafter: int
    what: str  # late, full, silent, or lost or malformed and why


Told = (
    Admit
    | Prefilled
    | PrefillRefused
    | Acknowledged
    | Release
    | KeepSequences
    | BlocksCame
    | DrafterLost
    | DrafterReady
    | PassEnded
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
