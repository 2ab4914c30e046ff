"""A drafter behind the lane's own port, without messages: what it says and how long it takes comes from the file of a
synthetic pair, what lies between from `Hops`.

It does what the synthetic service does (`draft_service.synthetic`): as soon as it is free it takes all cohorts that
wait, of any lane, into one pass.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Sequence
from functools import partial

import numpy as np

from coordinator.lanes.ports import Declined, Drafted, DrafterFacts, DraftOrder
from coordinator.simulation.world import SimulatedWorker, World, curve_of
from dspark.types import NO_Q, Block, Cursor, EmptyReason, Law

BLOCKS_AT_ONCE = 256  # sequences of one draft pass, as `draft.max_batch_sequences`


class SimulatedDrafter(SimulatedWorker):
    """Keeps `ports.DrafterPort`."""

    def __init__(self, world: World, name: str, incarnation: int) -> None:
        super().__init__(world)
        spec = world.law.spec
        self.facts = DrafterFacts(
            name=name,
            endpoint=name,
            incarnation=incarnation,
            pid=0,
            model="synthetic",
            fingerprint=spec.fingerprint,
            vocab_size=spec.vocabulary,
            hidden_size=spec.feature_width,
            projection=spec.fingerprint,
            block_size=spec.block,
            context_length=spec.context_length,
            cost=curve_of(spec.draft),
        )
        world.drafters[self.facts.sink] = self
        self._rows: dict[int, tuple[int, int]] = {}  # sequence -> (epoch, rows)
        self._waiting: deque[tuple[Sequence[DraftOrder], Future[Drafted]]] = deque()
        self._passing: list[tuple[Sequence[DraftOrder], Future[Drafted]]] = []
        self._asked = False  # whether the device has been told that somebody waits

    def open(self, cursor: Cursor, reserve_tokens: int, law: Law) -> Future[Declined | None]:
        future = self._future()

        def arrived() -> None:
            if self._rows.get(cursor.sequence, (-1, 0))[0] < cursor.epoch:
                self._rows[cursor.sequence] = (cursor.epoch, 0)
            self.world.reply(future, None)

        self.command(1, arrived)
        return future

    def take(self, cursor: Cursor, start: int, stop: int) -> None:
        """Rows of a verifier; they are here before any draft that counts on them, which has further to go."""
        epoch, rows = self._rows.get(cursor.sequence, (-1, 0))
        if epoch == cursor.epoch and start <= rows:
            self._rows[cursor.sequence] = (epoch, max(rows, stop))

    def draft(self, orders: Sequence[DraftOrder], wait_us: int) -> Future[Drafted]:
        future = self._future()
        missing = any(self._missing(order) for order in orders)
        late = wait_us * 1e-6 if missing else 0.0
        self.command(len(orders), lambda: self._queue(orders, future), late)
        return future

    def release(self, cursor: Cursor) -> None:
        self._rows.pop(cursor.sequence, None)

    def _queue(self, orders: Sequence[DraftOrder], future: Future[Drafted]) -> None:
        self._waiting.append((orders, future))
        if not self._asked:
            self._asked = True
            self.device.submit(self._begin, self._over, urgent=True)

    def _begin(self) -> float:
        """The device is free: everybody who waits goes into one pass."""
        self._asked = False
        self._passing = list(self._waiting)
        self._waiting.clear()
        merged = [order for orders, _ in self._passing for order in orders]
        context = sum(order.cursor.committed_len for order in merged) / max(len(merged), 1)
        table = self.world.law.spec.draft
        pieces = (min(len(merged) - at, BLOCKS_AT_ONCE) for at in range(0, len(merged), BLOCKS_AT_ONCE))
        return sum(table.seconds(piece, context) for piece in pieces)

    def _over(self, seconds: float) -> None:
        passed, self._passing = self._passing, []
        blocks = self._blocks([order for orders, _ in passed for order in orders])
        at = 0
        for orders, future in passed:
            mine = tuple(blocks[at : at + len(orders)])
            at += len(orders)
            held = self.world.sequences.get(orders[0].cursor.sequence) if orders else None
            processor = held.processor if held is not None else None
            said = Drafted(mine, seconds)
            self.serve(len(orders), partial(self.world.reply, future, said, len(orders), processor))

    def _missing(self, order: DraftOrder) -> bool:
        epoch, rows = self._rows.get(order.cursor.sequence, (-1, 0))
        return epoch != order.cursor.epoch or rows < order.cursor.committed_len - 1

    def _blocks(self, orders: Sequence[DraftOrder]) -> list[Block]:
        law, sequences = self.world.law, self.world.sequences
        held = [sequences.get(order.cursor.sequence) for order in orders]
        keys = np.array([one.key if one is not None else 0 for one in held], np.uint64)
        domains = np.array([one.domain if one is not None else 0 for one in held])
        anchors = np.array([order.cursor.committed_len - 1 for order in orders])
        drafted, chances = law.draft(keys, domains, anchors)
        believed = law.confidences(keys, anchors, chances).tolist()
        blocks = []
        for order, one, ids, sure in zip(orders, held, drafted.tolist(), believed, strict=True):
            cursor = order.cursor
            rows = self._rows.get(cursor.sequence, (-1, 0))[1]
            if one is None or self._missing(order):
                reason = EmptyReason.UNKNOWN_SEQUENCE if one is None else EmptyReason.FEATURES_MISSING
                blocks.append(Block(cursor, empty_reason=reason, watermark=rows))
                continue
            slots = order.max_slots
            blocks.append(Block(cursor, tuple(ids[:slots]), tuple(sure[:slots]), NO_Q, EmptyReason.NONE, rows))
        return blocks
