"""Asking the drafters of a lane for the blocks of one cohort.

One message per drafter, one deadline for all, one attempt per (sequence, epoch, anchor): no retry and no hedge. Who
is late or lost leaves empty blocks, which are ordinary blocks. A drafter that still owes a reply is asked nothing
more until it came, so a hung one costs a single deadline.
"""

from __future__ import annotations

from asyncio import Future
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import structlog

from coordinator.clock import Clock, settled
from coordinator.lanes.feeding import Feeding
from coordinator.lanes.ports import Drafted, DrafterPort, Lost
from coordinator.lanes.rounds import Turn, mean_context
from coordinator.scheduling.running_fit import Running
from coordinator.scheduling.step_cost import DraftCost
from dspark.runtime.telemetry import Metrics
from dspark.types import Block, EmptyReason

log = structlog.get_logger("dspark.drafting")
T = TypeVar("T")

SLACK = 3.0  # expected passes a draft may take before it is late


@dataclass(frozen=True, slots=True)
class DraftWaits:
    """How long drafters are waited for."""

    deadline_s: float = 0.5  # or what the passes are known to take, times SLACK
    patience_s: float = 5.0  # a drafter that is silent for longer is let go
    feature_wait_us: int = 3_000  # what a drafter may wait for rows that are on their way ...
    feature_wait_us_each: int = 300  # ... and for each sequence of the cohort, whose rows come one after the other


@dataclass(frozen=True, slots=True)
class Asked:
    """Orders on their way."""

    orders: dict[DrafterPort, list[Turn]]
    replies: dict[DrafterPort, Future[Drafted]]
    began: float  # clock time
    deadline_s: float  # from then on
    beside: bool  # another cohort's step


class Drafting:
    """Keeps what the lane's drafters owe, and what their passes take."""

    def __init__(
        self,
        feeding: Feeding,
        waits: DraftWaits,
        clock: Clock,
        metrics: Metrics,
        overlaps: Callable[[], bool],
    ) -> None:
        self._feeding, self._waits, self._clock, self._metrics = feeding, waits, clock, metrics
        self._owed: Counter[DrafterPort] = Counter()  # replies that missed their deadline
        self._costs: dict[DrafterPort, DraftCost] = {}
        self._overlaps = overlaps  # whether two cohorts take turns, see `pipelining`
        self.hops = Running()  # round trips of drafts less device time

    @property
    def owed(self) -> bool:
        """Whether a drafter still computes what came too late."""
        return bool(self._owed)

    def left(self, drafter: DrafterPort) -> None:
        """It is gone; what it owed fails by itself."""
        self._costs.pop(drafter, None)

    def sort(self, turns: Iterable[Turn]) -> dict[DrafterPort, list[Turn]]:
        """Who is asked for which blocks; the other turns say why not."""
        asked: dict[DrafterPort, list[Turn]] = {}
        for turn in turns:
            drafter = turn.track.drafter
            turn.empty_because = self._why_not(turn)
            if drafter is not None and not turn.empty_because:
                asked.setdefault(drafter, []).append(turn)
        return asked

    def seconds(self, asked: Mapping[DrafterPort, Sequence[Turn]]) -> float:
        """What these drafts are expected to take, hops included; drafters work side by side."""
        beside = self._overlaps()
        passes = [
            self._cost(drafter).seconds(len(its), mean_context(its), _slots(drafter, its), beside=beside)
            for drafter, its in asked.items()
        ]
        return max(passes) + self.hops.seconds if passes else 0.0

    def would_take(self, asked: Mapping[DrafterPort, int], context: float, slots: int) -> float:
        """The same for so many sequences each, all with so many slots."""
        beside = self._overlaps()
        passes = [
            self._cost(drafter).seconds(count, context, slots, beside=beside)
            for drafter, count in asked.items()
            if count
        ]
        return max(passes) + self.hops.seconds if passes and slots else 0.0

    def ask(self, asked: dict[DrafterPort, list[Turn]]) -> Asked:
        """Sends the orders; the deadline of the cohort is settled now."""
        began = self._clock.time()
        deadline_s = max(self._waits.deadline_s, SLACK * self.seconds(asked)) if asked else 0.0
        if asked:
            self._metrics.control_round_trips.labels(kind="draft").inc()
        replies = {drafter: self._ask(drafter, its) for drafter, its in asked.items()}
        return Asked(asked, replies, began, deadline_s, self._overlaps())

    async def fill(self, pending: Asked) -> float:
        """Fills in blocks; returns how long they took."""
        if not pending.replies:
            return 0.0
        left = pending.began + pending.deadline_s - self._clock.time()
        await settled(pending.replies.values(), max(left, 0.0), self._clock)
        took = self._clock.time() - pending.began
        self._metrics.draft_rpc.observe(took)
        drafted = [self._collect(pending, drafter) for drafter in pending.replies]
        on_the_way = [took - each.forward_s for each in drafted if each is not None]
        if on_the_way:
            self.hops.observe(max(on_the_way))
        return took

    def _why_not(self, turn: Turn) -> str:
        why = self._feeding.why_not(turn.track)
        if why is None and turn.track.answer.room < 2:
            return "last_token"  # the target's own token fills the answer
        if why is None and turn.track.drafter in self._owed:
            return "drafter_late"
        return why or ""

    def _ask(self, drafter: DrafterPort, its: Sequence[Turn]) -> Future[Drafted]:
        for turn in its:
            turn.track.drafted = (turn.cursor.epoch, turn.cursor.committed_len)
            turn.drafter_version = drafter.facts.fingerprint
        orders = [turn.draft_order(drafter.facts.block_size) for turn in its]
        return drafter.draft(orders, self._waits.feature_wait_us + len(its) * self._waits.feature_wait_us_each)

    def _collect(self, pending: Asked, drafter: DrafterPort) -> Drafted | None:
        """The blocks of one drafter's cohort: all of them or none."""
        its, reply = pending.orders[drafter], pending.replies[drafter]
        if not reply.done():
            self._owe(pending, drafter)
        drafted = result_of(reply)
        if drafted is None or len(drafted.blocks) != len(its):
            for turn in its:
                turn.empty_because = "drafter_lost" if reply.done() else "late"
            return None
        for turn, block in zip(its, drafted.blocks, strict=True):
            self._accept(turn, block)
        self._learn(pending, drafter, drafted.forward_s)
        return drafted

    def _accept(self, turn: Turn, block: Block) -> None:
        if block.cursor != turn.cursor or turn.track.sequence.cursor != turn.cursor:
            turn.empty_because = "stale"
            self._drop(block, "stale")
            return
        turn.block = block
        turn.track.tally.drafted += len(block.token_ids)
        self._feeding.noted(turn.track, block)
        if not block.token_ids:
            turn.empty_because = EmptyReason(block.empty_reason or EmptyReason.INVALID).name.lower()

    def _owe(self, pending: Asked, drafter: DrafterPort) -> None:
        log.warning("draft.late", drafter=drafter.facts.name, sequences=len(pending.orders[drafter]))
        self._owed[drafter] += 1
        timer = self._clock.call_later(
            self._waits.patience_s, drafter.close, f"silent for more than {self._waits.patience_s:g} s"
        )

        def came(done: Future[Drafted]) -> None:
            timer.cancel()
            self._owed[drafter] -= 1
            if self._owed[drafter] <= 0:
                del self._owed[drafter]
            drafted = result_of(done)
            if drafted is not None:
                self._learn(pending, drafter, drafted.forward_s)
            for block in drafted.blocks if drafted is not None else ():
                self._drop(block, "late")  # its anchor has moved on

        pending.replies[drafter].add_done_callback(came)

    def _learn(self, pending: Asked, drafter: DrafterPort, forward_s: float) -> None:
        its = pending.orders[drafter]
        slots = _slots(drafter, its)
        self._cost(drafter).observe(len(its), mean_context(its), slots, forward_s, beside=pending.beside)

    def _drop(self, block: Block, reason: str) -> None:
        self._metrics.dropped.labels(kind="block", reason=reason).inc()
        self._metrics.draft_wasted_tokens.labels(reason=reason).inc(len(block.token_ids))

    def _cost(self, drafter: DrafterPort) -> DraftCost:
        cost = self._costs.get(drafter)
        if cost is None:
            cost = self._costs[drafter] = DraftCost(drafter.facts.cost, drafter.facts.block_size)
        return cost


def _slots(drafter: DrafterPort, its: Sequence[Turn]) -> int:
    """Of a pass: as many as its longest block has."""
    return min(max(turn.slots for turn in its), drafter.facts.block_size)


def result_of(future: Future[T]) -> T | None:
    """The result, or None while it is missing or when the worker was lost; other errors are bugs and pass."""
    if not future.done() or future.cancelled():
        return None
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Lost):
        return None
    raise error
