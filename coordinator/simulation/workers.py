"""A verifier and a drafter behind the lane's own ports, without messages: what they say and how long they take comes
from the file of a synthetic pair, what lies between from `Hops`.

They do what the synthetic services do (`verify_service.synthetic`, `draft_service.synthetic`): urgent rounds before
chunks of prompts, one packed pass per cohort, a drafter that is free merges all cohorts that wait.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator.cost_curve import CostCurve
from coordinator.ports import (
    Declined,
    Drafted,
    DrafterFacts,
    DraftOrder,
    Judged,
    Lost,
    Prefilled,
    PrefillOrder,
    Sink,
    VerifierFacts,
    VerifyOrder,
)
from coordinator.simulation.device import Device
from dspark.synthetic.law import SyntheticLaw
from dspark.synthetic.steps import StepTable
from dspark.types import NO_Q, Block, Cursor, EmptyReason, Verdict

BLOCKS_AT_ONCE = 256  # sequences of one draft pass, as `draft.max_batch_sequences`


@dataclass(frozen=True, slots=True)
class Hops:
    """What lies between a command and its device and back, in seconds: the constants of the simulator."""

    hop_s: float = 150e-6  # one way: writing, the wire, reading, two threads
    sequence_s: float = 5e-6  # one way, more for each sequence of the message
    round_s: float = 100e-6  # the coordinator's own processor time for one reply: scheduling, settling
    round_sequence_s: float = 40e-6  # more for each sequence: its commit and its client's message

    def way(self, sequences: int) -> float:
        return self.hop_s + sequences * self.sequence_s

    def settling(self, sequences: int) -> float:
        return self.round_s + sequences * self.round_sequence_s

    def scaled(self, factor: float) -> Hops:
        return Hops(*(factor * value for value in (self.hop_s, self.sequence_s, self.round_s, self.round_sequence_s)))


@dataclass(slots=True)
class Held:
    """What both workers know of a sequence."""

    key: int
    domain: int


class World:
    """What the workers of one simulation share."""

    def __init__(self, law: SyntheticLaw, hops: Hops, prefill_chunk: int) -> None:
        self.law, self.hops, self.prefill_chunk = law, hops, prefill_chunk
        self.loop = asyncio.get_running_loop()
        self.sequences: dict[int, Held] = {}
        self.drafters: dict[Sink, SimulatedDrafter] = {}

    def reply(self, future: Future[Any], value: Any, sequences: int, processor: Device | None = None) -> None:
        """Sends a reply on its way; it then waits for the coordinator's processor, if it has to be settled there."""

        def arrived() -> None:
            if processor is not None:
                processor.submit(lambda: self.hops.settling(sequences), give, urgent=True)
            else:
                give(0.0)

        def give(_: float) -> None:
            if not future.done():
                future.set_result(value)

        self.loop.call_later(self.hops.way(sequences), arrived)


class _Worker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.device = Device()
        self.on_close: Callable[[], object] = lambda: None
        self._open: set[Future[Any]] = set()
        self._closed = ""

    def _future(self) -> Future[Any]:
        future: Future[Any] = self.world.loop.create_future()
        if self._closed:
            future.set_exception(Lost(self._closed))
            return future
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def close(self, why: str) -> None:
        """Nothing is asked of it any more, and what was asked fails."""
        if self._closed:
            return
        self._closed = why
        for future in list(self._open):
            future.set_exception(Lost(why))
            future.exception()
        self.on_close()


class SimulatedVerifier(_Worker):
    """Keeps `ports.VerifierPort`."""

    def __init__(self, world: World, name: str, processor: Device, pages: int, page_size: int = 16) -> None:
        super().__init__(world)
        self.processor = processor  # of its coordinator: replies are settled one after the other
        spec = world.law.spec
        self.facts = VerifierFacts(
            name=name,
            endpoint=name,
            incarnation=1,
            pid=0,
            model="synthetic",
            fingerprint=spec.fingerprint,
            vocab_size=spec.vocabulary,
            context_length=spec.context_length,
            hidden_size=spec.feature_width,
            projection=spec.fingerprint,
            page_size=page_size,
            pages_total=pages,
            attention_path="synthetic",
            stop_token_ids=(),
            cost=_curve(spec.verify),
        )

    def prefill(self, order: PrefillOrder) -> Future[Prefilled | Declined]:
        world, spec, future = self.world, self.world.law.spec, self._future()
        ids, law = order.token_ids, order.law
        key = world.law.key(ids[0], law.seed, law.choice)
        world.sequences[order.cursor.sequence] = Held(key, world.law.domain(ids[0]))
        ends = [*range(world.prefill_chunk, len(ids), world.prefill_chunk), len(ids)]
        sizes = np.diff([0, *ends]).tolist()
        spent = 0.0

        def chunk(index: int) -> None:
            self.device.submit(
                lambda: spec.prefill_seconds(sizes[index], ends[index]), lambda s: over(index, s), urgent=False
            )

        def over(index: int, seconds: float) -> None:
            nonlocal spent
            spent += seconds
            if index + 1 < len(ends):
                chunk(index + 1)
                return
            self._push(order.sink, order.cursor, 0, len(ids))
            anchor = int(world.law.target(np.array([key], np.uint64), np.array([len(ids)]))[0])
            world.reply(future, Prefilled(order.cursor, anchor, spent), 1, self.processor)

        world.loop.call_later(world.hops.way(1), chunk, 0)
        return future

    def verify(self, orders: Sequence[VerifyOrder]) -> Future[Judged]:
        world, future = self.world, self._future()
        tokens = len(orders) + sum(len(order.draft_ids) for order in orders)
        context = sum(order.cursor.committed_len for order in orders) / max(len(orders), 1)

        def over(seconds: float) -> None:
            verdicts = self._judge(orders)
            world.reply(future, Judged(verdicts, seconds, tokens), len(orders), self.processor)

        seconds = world.law.spec.verify.seconds(tokens, context)
        world.loop.call_later(
            world.hops.way(len(orders)), lambda: self.device.submit(lambda: seconds, over, urgent=True)
        )
        return future

    def resend(self, cursor: Cursor, sink: Sink, from_position: int) -> Future[Declined | None]:
        future = self._future()
        self._push(sink, cursor, from_position, cursor.committed_len - 1)
        self.world.reply(future, None, 1)
        return future

    def release(self, cursor: Cursor) -> None:
        self.world.sequences.pop(cursor.sequence, None)

    def _judge(self, orders: Sequence[VerifyOrder]) -> tuple[Verdict | Declined, ...]:
        widest = 1 + max(len(order.draft_ids) for order in orders)
        held = [self.world.sequences.get(order.cursor.sequence) for order in orders]
        keys = np.array([one.key if one is not None else 0 for one in held], np.uint64)
        lengths = np.array([order.cursor.committed_len for order in orders])
        said = self.world.law.target(keys[:, None], lengths[:, None] + np.arange(widest)).tolist()
        verdicts: list[Verdict | Declined] = []
        for order, ids in zip(orders, said, strict=True):
            accepted = 0
            for drafted in order.draft_ids:
                if drafted != ids[accepted]:
                    break
                accepted += 1
            cursor = order.cursor
            through = cursor.committed_len + accepted
            self._push(order.sink, cursor, cursor.committed_len - 1, through)
            verdicts.append(Verdict(cursor, accepted, ids[accepted], through))
        return tuple(verdicts)

    def _push(self, sink: Sink | None, cursor: Cursor, start: int, stop: int) -> None:
        if sink is not None:
            self.world.drafters[sink].take(cursor, start, stop)


class SimulatedDrafter(_Worker):
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
            cost=_curve(spec.draft),
        )
        world.drafters[self.facts.sink] = self
        self._rows: dict[int, tuple[int, int]] = {}  # sequence -> (epoch, rows)
        self._waiting: deque[tuple[Sequence[DraftOrder], Future[Drafted]]] = deque()
        self._passing: list[tuple[Sequence[DraftOrder], Future[Drafted]]] = []
        self._asked = False  # whether the device has been told that somebody waits

    def open(self, cursor: Cursor, reserve_tokens: int) -> Future[Declined | None]:
        future = self._future()

        def arrived() -> None:
            if self._rows.get(cursor.sequence, (-1, 0))[0] < cursor.epoch:
                self._rows[cursor.sequence] = (cursor.epoch, 0)
            self.world.reply(future, None, 1)

        self.world.loop.call_later(self.world.hops.way(1), arrived)
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
        self.world.loop.call_later(self.world.hops.way(len(orders)) + late, self._queue, orders, future)
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
            self.world.reply(future, Drafted(mine, seconds), len(orders))

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


def _curve(table: StepTable) -> CostCurve:
    sizes, contexts, seconds = table.announced()
    return CostCurve(sizes, contexts, [value for row in seconds for value in row])
