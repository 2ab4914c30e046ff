"""Rounds with one verifier over one stream: opens contexts, takes orders with their rows, sends
blocks.

Commands are handled on the thread that owns the device; the stream's reader only queues them. Rows
are ingested as they arrive, so that most of a large order's context is done before its last part is
here, and nothing waits for a watermark. An invalid message breaks the protocol: the stream ends
with the field's name, and the verifier, which loses drafts and nothing else, opens a new one. The
stream is the lease of its contexts: when it ends, or is silent for too long, they are freed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import structlog

from draft_service.drafting import Drafted, Drafting
from draft_service.engine_core import DraftEngineCore
from draft_service.interface import DraftItem, number_here
from draft_service.interface import Rows as RowRun
from dspark.errors import InvalidRequest, PeerError, Unavailable
from dspark.rounds.orders import MAX_OPEN_ORDERS
from dspark.runtime.backlog import Backlog
from dspark.runtime.channel import MAX_MESSAGE
from dspark.runtime.wire_limits import KIB, MIB, Bounds, Read
from dspark.runtime.worker import Worker, new_owner
from dspark.types import Cursor, Refusal, RefusalReason, SamplingParams
from dspark.wire import codec, cohorts, orders
from dspark.wire.blocks import write_blocks
from dspark.wire.finite import bytes_in
from dspark.wire.v1 import draft_pb2, types_pb2

log = structlog.get_logger("dspark.draft")

_COLUMN = 5 * cohorts.MAX_ROWS  # bytes
BOUNDS = Bounds(
    {1: ("hello", KIB), 3: ("close", MIB), 6: ("keep", 2 * MIB)},
    inner={
        2: Bounds({4: ("sampling", 64 * KIB)}),
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
                11: ("order.mask_bytes", _COLUMN),
                12: ("order.masks", orders.MAX_MASKS),
            }
        ),
        5: Bounds({2: ("rows.features", MAX_MESSAGE)}),
    },
)
LEAST_LEASE_S = 30.0  # an idle verifier lists its contexts every ten seconds
_NONE = SamplingParams()


class _Arriving:
    """An order whose feature rows have not all arrived."""

    def __init__(self, order: orders.Order, numbers: Sequence[int]) -> None:
        self.order = order
        self.numbers = numbers  # of its sequences, at this drafter
        self._row = self._within = 0  # next sequence to fill, and its rows so far
        self.missing = sum(order.rows)

    def take(self, rows: Any) -> list[RowRun]:
        """Splits the next rows [r, H] of the order by sequence. Raises PeerError for more rows than
        are missing."""
        order, row, within, count = self.order, self._row, self._within, len(rows)
        if count > self.missing:
            raise PeerError(f"rows.features: {count} rows where {self.missing} are to come")
        runs: list[RowRun] = []
        at, first = 0, len(order.token_ids) - self.missing
        while at < count:
            own = order.rows[row]
            stop = min(at + own - within, count)
            if stop > at:
                start = order.committed_lens[row] - 1 - own + within
                ids = order.token_ids[first + at : first + stop]
                runs.append(RowRun(self.numbers[row], order.epochs[row], start, rows[at:stop], ids))
                at, within = stop, within + stop - at
            if within == own:
                row, within = row + 1, 0
        self._row, self._within, self.missing = row, within, self.missing - count
        return runs


class Rounds:
    """Rounds over one stream. post: queues a job for the device thread; say: sends an event to the
    verifier; failed: ends the stream with an error."""

    def __init__(
        self,
        worker: Worker[DraftEngineCore],
        drafting: Drafting,
        post: Callable[[Callable[[], None]], None],
        say: Callable[[draft_pb2.RoundsEvent], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._worker, self._engine, self._metrics = worker, worker.engine, worker.metrics
        self._drafting, self._post, self._say, self._failed = drafting, post, say, failed
        self._rows_received = worker.metrics.feature_rows.labels(direction="received")
        self._bytes_received = worker.metrics.bytes.labels(direction="received", kind="features")
        self._owner = new_owner()
        self._inbox: deque[tuple[draft_pb2.RoundsCommand, int]] = deque()  # command, size in bytes
        self._backlog = Backlog()
        self._posted = self._over = False
        self._heard_at = time.monotonic()
        self._verifier: int | None = None
        self._sequences: dict[tuple[int, int], SamplingParams] = {}  # by sequence and epoch
        self._arriving: _Arriving | None = None
        self._last = self._open = 0  # number of the last order; orders without an answer

    # Called on the threads of a stream.

    def hear(self, read: Read[draft_pb2.RoundsCommand]) -> None:
        """Queues the next command. Raises InvalidRequest for one that is too large, Overloaded
        where too many wait."""
        self._heard_at = time.monotonic()
        command, too_large, size = read
        if too_large is not None:
            raise too_large
        self._backlog.read(size)
        self._inbox.append((command, size))
        if not self._posted:
            self._posted = True
            self._post(self._turn)

    def left_s(self) -> float:
        """Seconds until the lease ends if no command arrives. Raises Unavailable when it has ended:
        a verifier that hangs with an open connection must not hold its contexts for ever."""
        lease_s = max(self._engine.config.lease_s, LEAST_LEASE_S)
        left = self._heard_at + lease_s - time.monotonic()
        if left > 0:
            return left
        log.warning("rounds.lease_over", lease_s=lease_s)
        self._metrics.dropped.labels(kind="sequence", reason="lease").inc(len(self._sequences))
        raise Unavailable(f"lease: nothing came for {lease_s:g} s")

    def close(self) -> None:
        """Ends the stream; frees everything that was opened through it."""
        self._post(self._free)

    # On the device thread.

    def _free(self) -> None:
        self._over = True
        self._inbox.clear()
        self._drafting.forget(self._owner)
        freed = self._engine.contexts.release_owner(self._owner)
        self._worker.note_load()
        log.info("rounds.ended", sequences=freed)

    def _turn(self) -> None:
        """Handles all queued commands; an error ends the stream."""
        self._posted = False
        try:
            while self._inbox and not self._over:
                command, size = self._inbox.popleft()
                self._backlog.seen(size)
                self._take(command)
        except PeerError as error:
            field, _, problem = str(error).partition(": ")
            self._end(InvalidRequest(field, problem))
        except Exception as error:
            self._end(error)
            if not isinstance(error, Unavailable):
                raise

    def _end(self, error: Exception) -> None:
        self._over = True
        self._inbox.clear()
        self._failed(error)

    def _take(self, command: draft_pb2.RoundsCommand) -> None:
        kind = command.WhichOneof("command")
        if (kind == "hello") is (self._verifier is not None):
            raise PeerError(f"{kind or 'command'}: hello comes first, and once")
        if self._arriving is not None and kind != "rows":
            raise PeerError(
                f"rows: {self._arriving.missing} rows of order {self._arriving.order.number} are "
                "missing"
            )
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
                # a message that closes them was lost
                self._close_contexts([at for at in self._sequences if at not in wanted])
            case _:
                raise PeerError("command: is empty")

    def _greet(self, hello: draft_pb2.RoundsHello) -> None:
        if hello.drafter_incarnation != self._worker.incarnation:
            raise Unavailable(
                f"hello.drafter_incarnation: this is not process {hello.drafter_incarnation}"
            )
        if hello.projection != self._engine.projection:
            raise PeerError(
                f"hello.projection: rows made by {hello.projection[:64]!r} are of no use here"
            )
        self._verifier = hello.verifier_incarnation
        welcome = draft_pb2.RoundsWelcome(
            incarnation=self._worker.incarnation, drafter_version=self._engine.fingerprint
        )
        self._say(draft_pb2.RoundsEvent(welcome=welcome))

    # Contexts.

    def _open_context(self, told: draft_pb2.OpenContext) -> None:
        params = codec.read_sampling(told.sampling)
        assert self._verifier is not None
        refusal: Refusal | None
        if self._worker.draining.is_set():
            refusal = Refusal(RefusalReason.NO_PAGES, "the drafter is draining")
        else:
            self._sequences[told.sequence, told.epoch] = params
            cursor = Cursor(number_here(self._verifier, told.sequence), told.epoch, 0, 0)
            try:
                refusal = self._engine.open(cursor, told.reserve_tokens, owner=self._owner)
            except Exception as error:
                log.error("open.failed", exc_info=error)
                refusal = Refusal(RefusalReason.INTERNAL, "a bug; see the drafter's log")
        opened = draft_pb2.ContextOpened(sequence=told.sequence, epoch=told.epoch)
        if refusal is None:
            self._worker.note_load()
        else:
            self._worker.refused(refusal.reason)
            self._sequences.pop((told.sequence, told.epoch), None)
            opened.refusal.CopyFrom(codec.write_refusal(refusal))
        self._say(draft_pb2.RoundsEvent(opened=opened))

    def _close_contexts(self, named: Sequence[tuple[int, int]]) -> None:
        assert self._verifier is not None
        for sequence, epoch in named:
            if self._sequences.pop((sequence, epoch), None) is not None:
                self._engine.contexts.release(number_here(self._verifier, sequence), epoch)
        self._worker.note_load()

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
        self._arriving = _Arriving(
            order, [number_here(verifier, sequence) for sequence in order.sequences]
        )
        if message.HasField("features"):
            self._rows_came(message.features)
        else:
            self._complete(self._arriving)

    def _take_rows(self, message: draft_pb2.OrderRows) -> None:
        if self._arriving is None or message.order != self._arriving.order.number:
            raise PeerError(f"rows.order: no rows of {message.order} are to come")
        self._rows_came(message.features)

    def _rows_came(self, features: types_pb2.TensorChunk) -> None:
        """Ingests rows of the order that is arriving. Rows that fail leave the watermark behind,
        and so the block empty."""
        arriving = self._arriving
        assert arriving is not None
        runs = arriving.take(self._engine.read_rows(features, max(arriving.missing, 1)))
        self._bytes_received.inc(bytes_in(features))
        try:
            self._engine.ingest_many(runs)
        # Concerns one order, perhaps one sequence; the others go on.
        except Exception as error:
            log.error("rows.failed", exc_info=error)
        if not arriving.missing:
            self._complete(arriving)

    def _complete(self, arriving: _Arriving) -> None:
        """Asks for the blocks of an order whose rows are all here."""
        self._arriving = None
        order = arriving.order
        cursors = map(Cursor, arriving.numbers, order.epochs, order.rounds, order.committed_lens)
        told = zip(order.sequences, cursors, order.anchors, order.slots, order.masks, strict=True)
        items = []
        for sequence, cursor, anchor, slots, mask in told:
            # without a context its block is empty, whatever its parameters
            params = self._sequences.get((sequence, cursor.epoch), _NONE)
            items.append(DraftItem(cursor, anchor, cursor.anchor_position, params, slots, mask))
        if order.token_ids:
            self._rows_received.inc(len(order.token_ids))
        self._open += 1
        self._drafting.ask(self._owner, items, partial(self._drafted, order.number, items))

    def _drafted(self, number: int, asked: Sequence[DraftItem], drafted: Drafted) -> None:
        self._open -= 1
        if self._over:
            return
        made = drafted.blocks
        if made is None:
            # A failed pass costs speed, never the answer: blocks are empty, the error is logged.
            self._metrics.refusals.labels(reason="internal").inc(len(asked))
            made = [self._engine.spoilt(each.cursor) for each in asked]
        fields: Any = write_blocks(made, number, forward_ns=drafted.forward_ns)
        self._say(draft_pb2.RoundsEvent(blocks=fields))
