"""Orders sent to drafters: their deadlines, and which replies arrived or are still owed. Pure; time
is passed in.

Invariant R5: a deadline is fixed when its order is sent and depends on no reply, so that being late
tells nothing about a block. A drafter that owes a reply gets no order until it arrives, so a hung
one costs a single deadline; one that stays silent is given up. Prompts that end one by one have an
order each; a drafter takes MAX_OPEN_ORDERS and gets no more until it has answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dspark.rounds.events import OrderRow, SendOrder
from dspark.rounds.plan import BlockTerms
from dspark.rounds.state import ORDER_SENT, SequenceState

SLACK = 3.0  # times the expected draft, after which one is late
MAX_OPEN_ORDERS = 64  # of one verifier at one drafter


@dataclass(frozen=True, slots=True)
class OrderTimeouts:
    """How long drafters are waited for, and how many rows travel with an order."""

    deadline_s: float = 0.5  # of an order, or SLACK times what the plan expects, if that is longer
    patience_s: float = 5.0  # a drafter that owes a reply for longer is given up
    # feature rows that may travel with an order; more go over the bulk stream
    inline_rows: int = 64

    def order_s(self, expected_s: float) -> float:
        return max(self.deadline_s, SLACK * expected_s)


@dataclass(slots=True)
class _Order:
    drafter: int
    rows: Sequence[SequenceState]
    until: float  # when it is late, or, once it is, when its drafter is given up


class OpenOrders:
    """The orders of one verifier to all its drafters."""

    def __init__(self, waits: OrderTimeouts) -> None:
        self._waits = waits
        self._open: dict[int, _Order] = {}
        self._owed: dict[int, _Order] = {}
        self._last = 0

    def closed(self, drafter: int) -> str:
        """Why a drafter gets no order for now, "" if it does: it owes a reply, or has as many
        orders as it takes."""
        if self._owed and any(order.drafter == drafter for order in self._owed.values()):
            return "drafter late"
        if len(self._open) < MAX_OPEN_ORDERS:
            return ""
        its = sum(order.drafter == drafter for order in self._open.values())
        return "drafter busy" if its >= MAX_OPEN_ORDERS else ""

    def send(
        self, drafter: int, asked: Sequence[tuple[SequenceState, BlockTerms]], until: float
    ) -> SendOrder:
        """Makes one order for several sequences. Invariant R2: their terms are frozen here."""
        self._last += 1
        rows = []
        for sequence, terms in asked:
            slots = min(terms.slots, sequence.room - 1)
            sequence.order, sequence.asked = self._last, drafter
            sequence.terms = terms if slots == terms.slots else terms._replace(slots=slots)
            sequence.ordered_len = sequence.committed_len
            rows.append(
                OrderRow(
                    sequence.number,
                    sequence.epoch,
                    sequence.round,
                    sequence.committed_len,
                    sequence.anchor,
                    slots,
                    sequence.rows_sent,
                )
            )
            sequence.rows_sent = sequence.committed_len - 1
            sequence.apply(ORDER_SENT)
        self._open[self._last] = _Order(drafter, [sequence for sequence, _ in asked], until)
        return SendOrder(self._last, drafter, rows)

    def answered(self, number: int) -> Sequence[SequenceState] | None:
        """The rows of an order that is answered in time; None for one that is not open any more."""
        order = self._open.pop(number, None)
        if order is None:
            self._owed.pop(number, None)
            return None
        return order.rows

    def late(self, now: float) -> list[tuple[int, int, Sequence[SequenceState]]]:
        """(number, drafter, rows) of orders whose deadline has passed; their drafters owe a reply
        from now on."""
        late = [(number, order) for number, order in self._open.items() if now >= order.until]
        for number, order in late:
            del self._open[number]
            self._owed[number] = _Order(order.drafter, (), now + self._waits.patience_s)
        return [(number, order.drafter, order.rows) for number, order in late]

    def silent(self, now: float) -> set[int]:
        """Drafters that owed a reply for too long, to be given up."""
        return {order.drafter for order in self._owed.values() if now >= order.until}

    def lost(self, drafter: int) -> list[tuple[int, Sequence[SequenceState]]]:
        """(number, rows) of the open orders of a drafter that is gone; it owes nothing any more."""
        gone = [
            (number, order.rows) for number, order in self._open.items() if order.drafter == drafter
        ]
        for number, _ in gone:
            del self._open[number]
        self._owed = {
            number: order for number, order in self._owed.items() if order.drafter != drafter
        }
        return gone

    def next_at(self) -> float | None:
        """When the next deadline or patience ends; None without any."""
        return min(
            (order.until for order in (*self._open.values(), *self._owed.values())), default=None
        )
