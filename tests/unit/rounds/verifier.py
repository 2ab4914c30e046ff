"""What stands around a `RoundLoop` in tests: a verifier that is told what to draw."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from coordinator.simulation.world import Pages
from dspark.rounds.events import (
    Acknowledged,
    Action,
    Admit,
    BlocksCame,
    DrafterReady,
    PassEnded,
    Prefilled,
    Report,
    RoundReport,
    RunPass,
    SendOrder,
    SendRows,
    Told,
)
from dspark.rounds.loop import RoundLoop
from dspark.rounds.orders import OrderTimeouts
from dspark.rounds.plan import NO_CAP, BlockTerms, Plan, PlanKind, SequencePlan
from dspark.types import Verdict

A = TypeVar("A")
DRAFTER, OTHER = 5, 6
PROMPT = 100  # more than travel with an order


def priced(
    price: float = 0.0, *, slots: int = 3, window: int = 2, cap: int = NO_CAP, cohorts: int = 1
) -> Plan:
    return Plan(BlockTerms(PlanKind.PRICE, slots, price, cap=cap), cohorts, window)


def by(drafter: int, plan: Plan | None = None) -> Plan:
    """The plan that gives sequence 1 to this drafter."""
    return replace(plan or priced(), sequences={1: SequencePlan(drafter=drafter)})


class Verifier:
    """A loop and its time. Rows that are sent in bulk arrive at once unless `hold_rows` is set."""

    def __init__(
        self, plan: Plan | None = None, pages: int = 0, waits: OrderTimeouts | None = None
    ) -> None:
        """pages: of one token each; 0: no limit."""
        self.freed: list[tuple[int, int]] = []
        self.pages = Pages(pages, 1, self.freed.append)
        self.loop = RoundLoop(self.pages, waits)
        self.now = 0.0
        self.hold_rows = False
        self.said: list[Action] = []
        self.tell(plan or priced())

    def tell(self, *told: Told | Plan) -> list[Action]:
        """What the loop asks for at that."""
        actions = self.loop.feed_all(told, self.now)
        self.said.extend(actions)
        if not self.hold_rows:
            came = [
                DrafterReady(each.drafter, each.sequence, each.epoch, each.stop)
                for each in of(actions, SendRows)
            ]
            if came:
                actions = actions + self.tell(*came)
        return actions

    def prefilled(
        self, *numbers: int, drafter: int = DRAFTER, room: int = 20, epoch: int = 0
    ) -> list[Action]:
        """Sequences whose anchor is there and acknowledged, and whose rows have come; all of them
        begin at once."""
        plan = self.loop.plan
        self.tell(replace(plan, window=0))
        for number in numbers:
            self.tell(Admit(number, epoch, PROMPT, room, frozenset({99}), drafter))
        self.tell(*(Prefilled(number, epoch, 7) for number in numbers))
        return self.tell(*(Acknowledged(number, epoch, 0) for number in numbers), plan)

    def ordered(self, *numbers: int, **more: int) -> SendOrder:
        """The order for sequences that begin, see `prefilled`."""
        return only(self.prefilled(*numbers, **more), SendOrder)

    def drafted(self, *confidence: float, **more: int) -> RunPass:
        """The first pass of sequence 1, with this block."""
        return self.run(self.ordered(1, **more), confidence)

    def run(self, order: SendOrder, *confidence: Sequence[float]) -> RunPass:
        """The pass that begins with these blocks."""
        return only(self.blocks(order, *confidence), RunPass)

    def blocks(self, order: SendOrder, *confidence: Sequence[float]) -> list[Action]:
        """The drafter answers with a row for each of the order's."""
        marks = [row.committed_len - 1 for row in order.rows]
        return self.tell(BlocksCame(order.order, confidence, marks, answer=order))

    def ended(self, run: RunPass, accepted: int = 0, token: int = 3) -> list[Action]:
        """The pass ends, with as many drafted tokens kept in every row as its prefix allows."""
        drawn = [Verdict((token,) * (min(accepted, row.prefix) + 1)) for row in run.rows]
        return self.tell(PassEnded(run.number, drawn))

    def past(self, actions: Iterable[Action]) -> list[Action]:
        """The pass that was begun ends."""
        return self.ended(only(actions, RunPass))

    def too_late(self) -> list[Action]:
        """It is the time that the loop waits for."""
        self.now = self.loop.next_at() or 0.0
        return self.tell()

    def acknowledge(self, actions: Iterable[Action]) -> list[Action]:
        """Everything reported in these."""
        return self.tell(
            *(Acknowledged(each.sequence, each.epoch, each.round) for each in rounds(actions))
        )

    def state(self, number: int) -> str:
        sequence = self.loop.sequence(number)
        return sequence.state.name if sequence is not None else "GONE"


def of(actions: Iterable[Action], kind: type[A]) -> list[A]:
    return [each for each in actions if isinstance(each, kind)]


def only(actions: Iterable[Action], kind: type[A]) -> A:
    (found,) = of(actions, kind)
    return found


def rounds(actions: Iterable[Action]) -> list[RoundReport]:
    return [each for report in of(actions, Report) for each in report.rounds]
