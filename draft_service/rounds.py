"""Rounds with one verifier: contexts opened, orders taken with their rows, blocks sent back, in one stream.

Rows of an order and the order itself are one device job, so nothing waits for a watermark. A message that does not fit
breaks the protocol: the stream ends with the field's name, and the verifier, who loses drafts and nothing else, begins
anew. The stream is the lease of its contexts: when it ends, or nothing comes for too long, they are freed.

Invariant R5: when an answer leaves depends on what was ordered, never on what was drawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import Any

import structlog

from draft_service.cohorts import Cohorts, Drafted
from draft_service.interface import DraftItem, Engine
from draft_service.interface import Rows as RowRun
from draft_service.keys import ContextKeys
from dspark.errors import InvalidRequest, Overloaded, PeerError, Unavailable
from dspark.runtime.channel import MAX_MESSAGE
from dspark.runtime.outbox import Outbox
from dspark.runtime.wire_limits import KIB, MIB, Bounds, Read
from dspark.runtime.worker import Worker, new_owner
from dspark.types import Block, Cursor, EmptyReason, Law, Refusal, RefusalReason
from dspark.wire import codec, cohorts, orders
from dspark.wire.v1 import draft_pb2, types_pb2

log = structlog.get_logger("dspark.draft")

_COLUMN = 5 * cohorts.MAX_ROWS  # bytes
BOUNDS = Bounds(
    {1: ("hello", KIB), 3: ("close", MIB), 6: ("keep", 2 * MIB)},
    inner={
        2: Bounds({4: ("law", 64 * KIB)}),
        4: Bounds(
            {
                2: ("order.sequence", 2 * _COLUMN),
                3: ("order.epoch", _COLUMN),
                4: ("order.round", _COLUMN),
                5: ("order.committed_len", _COLUMN),
                6: ("order.anchors", _COLUMN),
                7: ("order.slots", _COLUMN),
                8: ("order.rows", _COLUMN),
                9: ("order.token_ids", 5 * orders.MAX_FEATURE_ROWS),
                10: ("order.features", MAX_MESSAGE),
            }
        ),
        5: Bounds({2: ("rows.features", MAX_MESSAGE)}),
    },
)
LEAST_LEASE_S = 30.0  # a verifier with nothing else to say lists its contexts every ten seconds
MAX_OPEN_ORDERS = 64  # of one stream; a verifier has one or two


class _Arriving:
    """An order whose rows are on their way."""

    def __init__(self, order: orders.Order, numbers: Sequence[int]) -> None:
        self.order = order
        self.runs: list[RowRun] = []
        self._numbers = numbers  # of the contexts here
        self._row = self._within = 0  # the sequence whose rows come next, and how many of its came
        self._came = 0  # rows in all
        self.missing = sum(order.rows)

    def take(self, rows: Any) -> None:
        """The next rows [r, H] of the order, cut by sequence. Raises PeerError for more than there are to come."""
        if len(rows) > self.missing:
            raise PeerError(f"rows.features: {len(rows)} rows where {self.missing} are to come")
        at = 0
        while at < len(rows):
            order, row = self.order, self._row
            more = min(order.rows[row] - self._within, len(rows) - at)
            if more:
                cursor, first = order.cursors[row], self._came
                start = cursor.committed_len - 1 - order.rows[row] + self._within
                ids = order.token_ids[first : first + more]
                self.runs.append(RowRun(self._numbers[row], cursor.epoch, start, rows[at : at + more], ids))
                at, self._within, self._came = at + more, self._within + more, self._came + more
            if self._within == order.rows[row]:
                self._row, self._within = row + 1, 0
        self.missing -= len(rows)


class Rounds:
    """One stream."""

    def __init__(self, worker: Worker[Engine], cohorts: Cohorts, keys: ContextKeys) -> None:
        self._worker, self._engine, self._metrics = worker, worker.engine, worker.metrics
        self._cohorts, self._keys = cohorts, keys
        self._owner = new_owner()
        self._heard_at = time.monotonic()
        self._verifier: int | None = None
        self._laws: dict[tuple[int, int], tuple[int, Law]] = {}  # by sequence and epoch: its number here, its law
        self._arriving: _Arriving | None = None
        self._last = self._open = 0  # order
        self._outbox: Outbox[draft_pb2.RoundsEvent] = Outbox(worker.metrics)
        self._releases: set[asyncio.Task[None]] = set()

    async def run(self, requests: AsyncIterator[Read[draft_pb2.RoundsCommand]]) -> AsyncGenerator[Any, None]:
        """Events until the verifier ends the stream, or breaks the protocol."""
        reader = asyncio.create_task(self._read(requests))
        watch = asyncio.create_task(self._watch(max(self._engine.config.lease_s, LEAST_LEASE_S)))
        ends = (reader, watch)
        for each in ends:
            each.add_done_callback(lambda _: self._outbox.end())
        try:
            with self._worker.draining.telling(self._say_draining):
                async with contextlib.aclosing(self._outbox.events()) as events:
                    async for event in events:
                        yield event
            for each in (await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED))[0]:
                each.result()  # why it ended
        finally:
            for each in ends:
                each.cancel()
            await self._free()

    async def _watch(self, lease_s: float) -> None:
        """A verifier that hangs with its connection up may not hold its contexts for ever."""
        while (left := self._heard_at + lease_s - time.monotonic()) > 0:  # noqa: ASYNC110 - every message puts the end off
            await asyncio.sleep(left)
        log.warning("rounds.lease_over", lease_s=lease_s)
        self._metrics.dropped.labels(kind="sequence", reason="lease").inc(len(self._laws))
        raise Unavailable(f"lease: nothing came for {lease_s:g} s")

    async def _read(self, requests: AsyncIterator[Read[draft_pb2.RoundsCommand]]) -> None:
        async for command, too_large in requests:
            self._heard_at = time.monotonic()
            if too_large is not None:
                raise too_large
            try:
                self._take(command)
            except PeerError as error:
                field, _, problem = str(error).partition(": ")
                raise InvalidRequest(field, problem) from None

    def _take(self, command: draft_pb2.RoundsCommand) -> None:
        kind = command.WhichOneof("command")
        if (kind == "hello") is (self._verifier is not None):
            raise PeerError(f"{kind or 'command'}: hello comes first, and once")
        if self._arriving is not None and kind != "rows":
            raise PeerError(f"rows: {self._arriving.missing} rows of order {self._arriving.order.number} are missing")
        match kind:
            case "hello":
                self._greet(command.hello)
            case "open":
                self._open_context(command.open)
            case "order":
                self._take_order(command.order)
            case "rows":
                self._take_rows(command.rows)
            case "close":
                self._close_contexts([(ref.sequence, ref.epoch) for ref in command.close.sequences])
            case "keep":
                wanted = {(ref.sequence, ref.epoch) for ref in command.keep.sequences}
                self._close_contexts([at for at in self._laws if at not in wanted])  # a word of it got lost
            case _:
                raise PeerError("command: is empty")

    def _greet(self, hello: draft_pb2.RoundsHello) -> None:
        if hello.drafter_incarnation != self._worker.incarnation:
            raise Unavailable(f"hello.drafter_incarnation: this is not process {hello.drafter_incarnation}")
        if hello.projection != self._engine.projection:
            raise PeerError(f"hello.projection: rows made by {hello.projection[:64]!r} are of no use here")
        self._verifier = hello.verifier_incarnation
        welcome = draft_pb2.RoundsWelcome(
            incarnation=self._worker.incarnation, drafter_version=self._engine.fingerprint
        )
        self._outbox.put(draft_pb2.RoundsEvent(welcome=welcome))

    # Contexts.

    def _open_context(self, told: draft_pb2.OpenContext) -> None:
        law = codec.read_law(told.law)
        assert self._verifier is not None
        if self._worker.draining.is_set():
            self._refuse(told, Refusal(RefusalReason.NO_PAGES, "the drafter is draining"))
            return
        number = self._keys.open(self._verifier, told.sequence, self._owner)
        self._laws[told.sequence, told.epoch] = (number, law)
        cursor = Cursor(number, told.epoch, 0, 0)
        try:
            job = self._worker.device.submit(
                lambda: self._engine.open(cursor, told.reserve_tokens, owner=self._owner), urgent=True
            )
        except Overloaded as error:
            self._refuse(told, Refusal(RefusalReason.NO_PAGES, str(error)))
            return
        job.add_done_callback(partial(self._opened, told))

    def _opened(self, told: draft_pb2.OpenContext, job: asyncio.Future[Refusal | None]) -> None:
        if job.cancelled():
            return
        if (error := job.exception()) is not None:
            log.error("open.failed", exc_info=error)
            self._refuse(told, Refusal(RefusalReason.INTERNAL, "a bug; see the drafter's log"))
        elif (refusal := job.result()) is not None:
            self._refuse(told, refusal)
        else:
            self._worker.note_load()
            opened = draft_pb2.ContextOpened(sequence=told.sequence, epoch=told.epoch)
            self._outbox.put(draft_pb2.RoundsEvent(opened=opened))

    def _refuse(self, told: draft_pb2.OpenContext, refusal: Refusal) -> None:
        self._worker.refused(refusal.reason)
        self._forget(told.sequence, told.epoch)
        written = codec.write_refusal(refusal)
        opened = draft_pb2.ContextOpened(sequence=told.sequence, epoch=told.epoch, refusal=written)
        self._outbox.put(draft_pb2.RoundsEvent(opened=opened))

    def _forget(self, sequence: int, epoch: int) -> int | None:
        """The number that it had here, which is given up with its last epoch."""
        known = self._laws.pop((sequence, epoch), None)
        if known is None:
            return None
        if not any(other == sequence for other, _ in self._laws):
            assert self._verifier is not None
            self._keys.close(self._verifier, sequence, self._owner)
        return known[0]

    def _close_contexts(self, named: Sequence[tuple[int, int]]) -> None:
        gone: list[tuple[int, int]] = []
        for sequence, epoch in named:
            number = self._forget(sequence, epoch)
            if number is not None:
                gone.append((number, epoch))
        if gone:
            task = asyncio.create_task(self._release(gone))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, gone: Sequence[tuple[int, int]]) -> None:
        engine = self._engine
        with contextlib.suppress(Unavailable):
            await self._worker.device.run_surely(lambda: sum(engine.release(number, epoch) for number, epoch in gone))
            self._worker.note_load()

    async def _free(self) -> None:
        if self._verifier is not None:
            for sequence, _ in self._laws:
                self._keys.close(self._verifier, sequence, self._owner)
        try:
            freed = await self._worker.device.run_surely(self._engine.release_owner, self._owner)
        except Unavailable:  # the process is ending, and its memory with it
            return
        self._worker.note_load()
        log.info("rounds.ended", sequences=freed)

    # Orders.

    def _take_order(self, message: draft_pb2.Order) -> None:
        order = orders.read_order(message)
        if order.number <= self._last:
            raise PeerError(f"order.order: {order.number} does not ascend from {self._last}")
        if self._open >= MAX_OPEN_ORDERS:
            raise PeerError(f"order.order: {self._open} are open")
        self._last = order.number
        verifier = self._verifier
        assert verifier is not None
        numbers = [self._keys.find(verifier, cursor.sequence) for cursor in order.cursors]
        self._arriving = _Arriving(order, numbers)
        if message.HasField("features"):
            self._rows_came(message.features)
        else:
            self._complete(self._arriving)

    def _take_rows(self, message: draft_pb2.OrderRows) -> None:
        if self._arriving is None or message.order != self._arriving.order.number:
            raise PeerError(f"rows.order: no rows of {message.order} are to come")
        self._rows_came(message.features)

    def _rows_came(self, features: types_pb2.TensorChunk) -> None:
        arriving = self._arriving
        assert arriving is not None
        arriving.take(self._engine.read_rows(features, max(arriving.missing, 1)))
        if not arriving.missing:
            self._complete(arriving)

    def _complete(self, arriving: _Arriving) -> None:
        """All of it is there."""
        self._arriving = None
        order = arriving.order
        asked: list[DraftItem | Block] = []
        for cursor, anchor, slots in zip(order.cursors, order.anchors, order.slots, strict=True):
            known = self._laws.get((cursor.sequence, cursor.epoch))
            if known is None:
                asked.append(Block(cursor, empty_reason=EmptyReason.UNKNOWN_SEQUENCE))
            else:
                here = cursor._replace(sequence=known[0])
                asked.append(DraftItem(here, anchor, cursor.anchor_position, known[1], slots))
        received = sum(order.rows)
        if received:
            self._metrics.feature_rows.labels(direction="received").inc(received)
        able = [each for each in asked if isinstance(each, DraftItem)]
        job = self._cohorts.ask(able, arriving.runs)
        self._open += 1
        job.add_done_callback(partial(self._drafted, order.number, asked))

    def _drafted(self, number: int, asked: Sequence[DraftItem | Block], job: asyncio.Future[Drafted]) -> None:
        self._open -= 1
        if job.cancelled():
            return
        forward_ns = wait_ns = 0
        if (error := job.exception()) is not None:
            # Failing is a matter of speed, never of the answer: empty blocks, and a loud log.
            log.error("draft.failed", exc_info=error)
            self._metrics.refusals.labels(reason="internal").inc(len(asked))
            made = [
                Block(each.cursor, empty_reason=EmptyReason.INVALID, watermark=self._watermark(each.cursor))
                for each in asked
            ]
        else:
            drafted = job.result()
            forward_ns, wait_ns = drafted.forward_ns, drafted.wait_ns
            blocks = iter(drafted.blocks)
            made = [next(blocks) if isinstance(each, DraftItem) else each for each in asked]
        fields: Any = cohorts.write_blocks(made, forward_ns, order=number, wait_ns=wait_ns)
        self._outbox.put(draft_pb2.RoundsEvent(blocks=fields))

    def _watermark(self, cursor: Cursor) -> int:
        return self._engine.watermark(cursor.sequence, cursor.epoch)

    def _say_draining(self) -> None:
        left = types_pb2.Draining(finish_within_ms=self._worker.draining.left_ms)
        self._outbox.put(draft_pb2.RoundsEvent(draining=left))
