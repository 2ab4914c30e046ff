"""A simulated drafter: when free it takes all waiting orders, of any verifier, into one pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from coordinator.lanes.facts import DrafterFacts
from coordinator.simulation.pair import SimulatedBlock, SimulatedContext
from coordinator.simulation.world import SimulatedWorker, World, curve_of
from dspark.rounds.events import SendOrder

BLOCKS_AT_ONCE = 256  # sequences of one draft pass, as `draft.max_batch_sequences`
Key = tuple[str, int, int]  # verifier, sequence, epoch


class Answered(NamedTuple):
    """An order's blocks, one per row of the order; a row without a context gets an empty one."""

    blocks: Sequence[SimulatedBlock]
    watermarks: Sequence[int]
    forward_s: float


class _Waiting(NamedTuple):
    verifier: str
    order: SendOrder
    held: Sequence[SimulatedContext | None]
    answer: Callable[[Answered], object]


class SimulatedDrafter(SimulatedWorker):
    """One drafter process. `rows`: feature rows of each context, counted and not kept."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world)
        self._pair, spec = world.pair, world.spec
        self.facts = DrafterFacts(
            name=name,
            endpoint=name,
            incarnation=incarnation,
            model="synthetic",
            fingerprint=spec.fingerprint,
            vocab_size=spec.vocabulary,
            hidden_size=spec.feature_width,
            projection=spec.fingerprint,
            block_size=spec.block,
            context_length=spec.context_length,
            cost=curve_of(spec.draft),
        )
        self.rows: dict[Key, int] = {}
        self.users: dict[str, Callable[[], object]] = {}  # called when it is lost, by verifier
        self.silent = False  # takes orders and answers none
        self.room: int | None = None  # contexts that it holds at most; None: any number
        self._waiting: deque[_Waiting] = deque()
        self._passing: list[_Waiting] = []
        self._asked = False  # whether a pass for the waiting orders is submitted

    @property
    def full(self) -> bool:
        """Whether it has no room for another context."""
        return self.room is not None and len(self.rows) >= self.room

    def open(self, key: Key) -> None:
        self.rows[key] = 0

    def forget(self, key: Key) -> None:
        self.rows.pop(key, None)

    def forget_all(self, verifier: str) -> None:
        """Drops the contexts of a verifier whose stream ended."""
        self.users.pop(verifier, None)
        for key in [each for each in self.rows if each[0] == verifier]:
            del self.rows[key]

    def take(self, key: Key, start: int, stop: int) -> int | None:
        """Adds rows [start, stop). Returns how many there are without a gap; None: no context."""
        if key not in self.rows:
            return None
        if start <= self.rows[key]:
            self.rows[key] = max(self.rows[key], stop)
        return self.rows[key]

    def order(
        self,
        verifier: str,
        order: SendOrder,
        held: Sequence[SimulatedContext | None],
        answer: Callable[[Answered], object],
    ) -> None:
        """Takes a verifier's order; `answer` is called on the drafter's side with the blocks."""
        for row in order.rows:
            self.take((verifier, row.sequence, row.epoch), row.first_row, row.committed_len - 1)
        self.command(len(order.rows), lambda: self._queue(_Waiting(verifier, order, held, answer)))

    def _queue(self, waiting: _Waiting) -> None:
        if self.closed or self.silent:
            return
        self._waiting.append(waiting)
        if not self._asked:
            self._asked = True
            self.device.submit(self._begin, self._over, urgent=True)

    def _begin(self) -> float:
        """Takes all waiting orders into one pass. Returns its seconds."""
        self._asked = False
        self._passing = list(self._waiting)
        self._waiting.clear()
        rows = [row for each in self._passing for row in each.order.rows]
        context = sum(row.committed_len for row in rows) / max(len(rows), 1)
        pieces = (min(len(rows) - at, BLOCKS_AT_ONCE) for at in range(0, len(rows), BLOCKS_AT_ONCE))
        return sum(self.world.spec.draft.seconds(piece, context) for piece in pieces)

    def _over(self, seconds: float) -> None:
        passed, self._passing = self._passing, []
        if self.closed:
            return
        for each in passed:
            rows = each.order.rows
            marks = [self.rows.get((each.verifier, row.sequence, row.epoch), 0) for row in rows]
            able = [
                (held, row.slots)
                for held, row, mark in zip(each.held, rows, marks, strict=True)
                if held is not None and mark == row.committed_len - 1 == len(held.tokens) - 1
            ]
            drafted = iter(self._pair.draft(able)) if able else iter(())
            fit = {id(held) for held, _ in able}
            blocks = [
                next(drafted) if id(held) in fit else SimulatedBlock((), ()) for held in each.held
            ]
            self.serve(len(blocks), partial(each.answer, Answered(blocks, marks, seconds)))

    def lose(self) -> None:
        """Ends like a killed process: every verifier's stream to it breaks."""
        self.closed = True
        self.rows.clear()
        users, self.users = self.users, {}
        for tell in users.values():
            self.world.hop(tell)
