"""The drafters of one control stream: their streams, outstanding orders and received blocks.

Runs in turns (see `round_driver`). A drafter cannot stop the verifier: sending never waits, and one
whose stream breaks, is not answered or breaks the protocol is lost, and tried again after a pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from dspark.errors import PeerError
from dspark.rounds.control import Admission, DrafterAt, DrafterUse
from dspark.rounds.events import (
    BlocksCame,
    DrafterEvent,
    DrafterLost,
    OrderRow,
    PassRow,
    SendOrder,
    Told,
)
from dspark.runtime.worker import Worker
from dspark.types import EmptyReason, RefusalReason
from dspark.wire import codec, orders
from dspark.wire.blocks import Blocks, read_blocks
from dspark.wire.v1 import draft_pb2, types_pb2
from verify_service.drafter_stream import DrafterStream
from verify_service.engine_core import EngineCore
from verify_service.round_news import RoundNews
from verify_service.row_feeds import RowFeeds
from verify_service.row_stream import DrafterAddress

log = structlog.get_logger("dspark.rounds")

PAUSE_S = 1.0  # after a stream broke, before the drafter is tried again
KEEP_S = 10.0  # between two KeepContexts messages
GREETING_S = 5.0  # timeout for the welcome of a drafter
# in a row, after which a drafter is lost
MALFORMED_ORDERS = 3
MAX_VERSION = 256  # characters


class OutstandingOrder(NamedTuple):
    """An order that was sent and is not answered."""

    drafter: int
    rows: Sequence[OrderRow]
    sent: float  # monotonic seconds


class AnsweredOrder(NamedTuple):
    """The blocks of an order, with its times. Kept by its sequences until their pass is
    reported."""

    order: int
    drafter: int
    version: str  # of the drafter
    blocks: Blocks
    sent: float  # monotonic seconds
    came: float
    draft_s: float  # device time of the drafter's pass


@dataclass(slots=True)
class _KnownPeer:
    sink: DrafterAddress
    use: DrafterUse = DrafterUse.YES
    stream: DrafterStream | None = None
    begun: float = 0.0  # when its stream was opened
    version: str = ""  # set by its welcome
    broke: float = -PAUSE_S
    # open contexts, as (sequence, epoch)
    wanted: set[tuple[int, int]] = field(default_factory=set)
    kept: float = 0.0  # when KeepContexts was last sent
    malformed: int = 0  # answered orders in a row without a sound block


class Drafters:
    """All drafters of a stream. tell: runs a function in a turn of the device thread and feeds its
    result to the loop; `tell_here` does so on the calling thread. admitted: by sequence and
    epoch."""

    def __init__(
        self,
        worker: Worker[EngineCore],
        feeds: RowFeeds,
        admitted: dict[tuple[int, int], Admission],
        tell: Callable[[Callable[[], Iterable[Told]]], None],
        tell_here: Callable[[Callable[[], Iterable[Told]]], None],
        news: RoundNews,
    ) -> None:
        self._engine, self._feeds, self._security = worker.engine, feeds, worker.security
        self._incarnation, self._metrics = worker.incarnation, worker.metrics
        self._admitted, self._news = admitted, news
        self._tell, self._tell_here = tell, tell_here
        self._rows_sent = worker.metrics.feature_rows.labels(direction="sent")
        self._bytes_sent = worker.metrics.bytes.labels(direction="sent", kind="features")
        self._zeroed = worker.metrics.dropped.labels(kind="feature_rows", reason="not_finite")
        self._known: dict[int, _KnownPeer] = {}
        self._orders: dict[int, OutstandingOrder] = {}

    # Called for the coordinator.

    def told_of(self, at: DrafterAt) -> list[Told]:
        # a known drafter keeps its stream
        known = self._known.setdefault(
            at.drafter, _KnownPeer(DrafterAddress(at.endpoint, at.incarnation))
        )
        known.use = at.use
        if at.use is not DrafterUse.GONE:
            return []
        del self._known[at.drafter]
        return self._lose(at.drafter, known, "lost: gone") if known.stream is not None else []

    # Called by the round loop.

    def open(self, drafter: int, sequence: int, epoch: int) -> list[Told]:
        admission, known = self._admitted.get((sequence, epoch)), self._known.get(drafter)
        if admission is None:
            return []  # freed in the same turn
        stream = self._stream(drafter)
        if stream is None or known is None:
            return [DrafterLost(drafter, "lost: cannot be asked now")]
        told = draft_pb2.OpenContext(
            sequence=sequence,
            epoch=epoch,
            reserve_tokens=admission.longest,
            # only the target applies grammars
            sampling=codec.write_sampling(replace(admission.params, constraint=None)),
        )
        # rows wait for the answer, also where it was open before: the drafter starts it over
        self._feeds.close(drafter, (sequence, epoch))
        stream.send(draft_pb2.RoundsCommand(open=told))
        known.wanted.add((sequence, epoch))
        return []

    def close(self, drafter: int, sequence: int, epoch: int) -> None:
        self._feeds.close(drafter, (sequence, epoch))
        known = self._known.get(drafter)
        if known is not None and known.stream is not None:
            known.wanted.discard((sequence, epoch))
            ref = types_pb2.SequenceRef(sequence=sequence, epoch=epoch)
            known.stream.send(
                draft_pb2.RoundsCommand(close=draft_pb2.CloseContexts(sequences=[ref]))
            )

    def sink(self, drafter: int) -> DrafterAddress | None:
        """The sink of this drafter's feature rows; None without a stream."""
        known = self._known.get(drafter)
        return None if known is None or known.stream is None else known.sink

    def order(self, asked: SendOrder) -> list[Told]:
        known = self._known.get(asked.drafter)
        if known is None or known.stream is None:
            return [DrafterLost(asked.drafter, "lost: there is no stream")]
        try:
            kept = self._engine.kept_rows(asked.rows)
        except Exception as error:  # out of memory, say: it costs this drafter, not the stream
            log.error("rows.not_read", drafter=asked.drafter, exc_info=error)
            return self._lose(asked.drafter, known, "lost: its rows cannot be read")
        for message in orders.write_order(asked.order, asked.rows, *kept):
            known.stream.send(message)
        self._orders[asked.order] = OutstandingOrder(asked.drafter, asked.rows, time.monotonic())
        if kept.features is not None:
            self._rows_sent.inc(len(kept.token_ids))
            self._bytes_sent.inc(len(kept.features.data))
            self._zeroed.inc(kept.features.zeroed)
        return []

    def leaving(self) -> bool:
        """Whether a message to any drafter has not been sent yet."""
        return any(each.stream is not None and each.stream.leaving for each in self._known.values())

    def let_go(self, drafter: int) -> None:
        """Closes the stream of a drafter that the loop has given up."""
        known = self._known.get(drafter)
        if known is not None and known.stream is not None:
            self._lose(drafter, known, "lost: given up")

    def end(self) -> None:
        """Closes every stream."""
        for drafter, known in self._known.items():
            if known.stream is not None:
                try:
                    known.stream.close()
                except Exception as error:  # the others are closed all the same
                    log.error("drafter.not_closed", drafter=drafter, exc_info=error)

    # Time.

    def next_at(self) -> float | None:
        """Earliest time when `overdue` has work, in monotonic seconds; None: never."""
        due = [
            known.kept + KEEP_S if known.version else known.begun + GREETING_S
            for known in self._known.values()
            if known.stream is not None
        ]
        return min(due, default=None)

    def overdue(self, now: float) -> list[Told]:
        """Sends KeepContexts where it is due; drafters without a welcome by now are lost."""
        lost: list[Told] = []
        for drafter, known in list(self._known.items()):
            if known.stream is None:
                continue
            if not known.version and now >= known.begun + GREETING_S:
                lost += self._lose(drafter, known, "lost: does not answer")
            elif known.version and now >= known.kept + KEEP_S:
                known.kept = now
                refs = [types_pb2.SequenceRef(sequence=at[0], epoch=at[1]) for at in known.wanted]
                known.stream.send(
                    draft_pb2.RoundsCommand(keep=draft_pb2.KeepContexts(sequences=refs))
                )
        return lost

    # Streams.

    def _stream(self, drafter: int) -> DrafterStream | None:
        """The drafter's stream, opened if it has none and may have one."""
        known = self._known.get(drafter)
        if known is None or not self._engine.projection:
            return None
        now = time.monotonic()
        may = known.use is DrafterUse.YES and now >= known.broke + PAUSE_S
        if known.stream is None and may and known.sink.sound:
            hello = draft_pb2.RoundsHello(
                drafter_incarnation=known.sink.incarnation,
                verifier_incarnation=self._incarnation,
                projection=self._engine.projection,
            )

            def came(stream: DrafterStream, event: draft_pb2.RoundsEvent) -> None:
                self._tell_here(lambda: self._came(drafter, stream, event))

            def lost(stream: DrafterStream, why: str) -> None:
                self._tell(lambda: self._broke(drafter, stream, why))

            endpoint = known.sink.endpoint
            try:
                stream = DrafterStream(endpoint, hello, self._security, came, lost)
                stream.idle = self._news.orders_left
            # unreadable certificates, no thread: tried again after PAUSE_S
            except Exception as error:
                log.warning(
                    "drafter.unreachable", drafter=drafter, endpoint=endpoint, exc_info=error
                )
                known.broke = now
                return None
            known.stream, known.begun, known.version = stream, now, ""
            known.wanted, known.kept, known.malformed = set(), now, 0
        return known.stream

    def _broke(self, drafter: int, stream: DrafterStream, why: str) -> list[Told]:
        known = self._known.get(drafter)
        if known is None or known.stream is not stream:
            return []  # this stream was replaced or closed before
        return self._lose(drafter, known, f"lost: {why}")

    def _lose(self, drafter: int, known: _KnownPeer, why: str) -> list[Told]:
        log.warning("drafter.lost", drafter=drafter, endpoint=known.sink.endpoint, reason=why)
        if known.stream is not None:
            known.stream.close()
        known.stream, known.broke = None, time.monotonic()
        self._feeds.forget(drafter)
        self._orders = {at: each for at, each in self._orders.items() if each.drafter != drafter}
        return [DrafterLost(drafter, why)]

    def _came(
        self, drafter: int, stream: DrafterStream, event: draft_pb2.RoundsEvent
    ) -> Iterable[Told]:
        known = self._known.get(drafter)
        if known is None or known.stream is not stream:
            self._metrics.dropped.labels(kind="event", reason="stream_is_over").inc()
            return ()
        try:
            match event.WhichOneof("event"):
                case "welcome":
                    _greet(known, event.welcome)
                case "opened":
                    self._context(drafter, known, event.opened)
                case "blocks":
                    return [self._blocks(drafter, known, event.blocks)]
                case _:
                    raise PeerError("event: is empty")
        except PeerError as error:
            self._metrics.dropped.labels(kind="block", reason="malformed").inc()
            return self._lose(drafter, known, f"malformed: {error}")
        return ()

    def _context(self, drafter: int, known: _KnownPeer, opened: draft_pb2.ContextOpened) -> None:
        key = (opened.sequence, opened.epoch)
        if key not in known.wanted:  # closed in the meantime, or never opened
            self._metrics.dropped.labels(kind="context", reason="stale").inc()
            return
        if not opened.HasField("refusal"):
            self._feeds.opened(drafter, key)
            return
        self._feeds.close(drafter, key)
        self._metrics.dropped.labels(kind="context", reason="refused").inc()
        if codec.read_refusal(opened.refusal).reason is RefusalReason.NO_PAGES:
            self._news.add(DrafterEvent(drafter, "full"))

    def _blocks(self, drafter: int, known: _KnownPeer, message: draft_pb2.Blocks) -> Told:
        order = self._orders.get(message.order)
        if order is None or order.drafter != drafter:
            raise PeerError(f"blocks.order: {message.order} was not asked, or was answered")
        blocks = read_blocks(len(order.rows), message, self._engine.target.vocab_size)
        # Blocks longer than ordered are spoilt, like those with invalid values. An honest drafter
        # sends neither, so no drafted token decides it.
        blocks.spoil(
            [row for row, asked in enumerate(order.rows) if blocks.lengths[row] > asked.slots]
        )
        if blocks.spoilt:
            if len(blocks.spoilt) == len(order.rows):
                _count(known, True)
            self._metrics.dropped.labels(kind="block", reason="malformed").inc(len(blocks.spoilt))
        del self._orders[message.order]
        came = time.monotonic()
        # a drafter may be wrong about its time: no draft took longer than its answer
        draft_s = min(message.forward_ns * 1e-9, came - order.sent)
        answer = AnsweredOrder(
            message.order, drafter, known.version, blocks, order.sent, came, draft_s
        )
        why = [_WHY[reason] for reason in blocks.empty_reasons]
        return BlocksCame(message.order, blocks.confidences(), blocks.watermarks, why, answer)

    def judged(self, spoilt: Sequence[PassRow], sound: Sequence[PassRow]) -> list[Told]:
        """Counts answers whose blocks were in a pass; drafters with too many bad ones are lost.
        spoilt: rows whose blocks the pass found unsound; sound: those that it judged. Blocks
        without a slot to judge are neither."""
        lost: list[Told] = []
        for row in spoilt:
            row.answer.blocks.spoil([row.place])
            self._metrics.dropped.labels(kind="block", reason="malformed").inc()
        bad = {row.answer.order: row.answer for row in spoilt}
        good = {row.answer.order: row.answer for row in sound}
        for order, answer in {**bad, **good}.items():
            known = self._known.get(answer.drafter)
            whole = len(answer.blocks.spoilt) == len(answer.blocks.lengths)
            if known is None or known.stream is None or not (whole or order in good):
                continue
            try:
                _count(known, whole)
            except PeerError as error:
                lost += self._lose(answer.drafter, known, f"malformed: {error}")
        return lost


_WHY = {
    reason: "" if reason is EmptyReason.NONE else reason.name.lower().replace("_", " ")
    for reason in EmptyReason
}


def _count(known: _KnownPeer, whole: bool) -> None:
    """Counts an answered order. whole: it has no sound block. Raises PeerError after
    MALFORMED_ORDERS of those in a row."""
    known.malformed = known.malformed + 1 if whole else 0
    if known.malformed >= MALFORMED_ORDERS:
        raise PeerError(
            f"blocks: those of {known.malformed} orders in a row cannot have been drafted"
        )


def _greet(known: _KnownPeer, welcome: draft_pb2.RoundsWelcome) -> None:
    if welcome.incarnation != known.sink.incarnation:
        raise PeerError(f"welcome.incarnation: {welcome.incarnation} is another process")
    if not 0 < len(welcome.drafter_version) <= MAX_VERSION:
        raise PeerError(f"welcome.drafter_version: {len(welcome.drafter_version)} characters")
    known.version = welcome.drafter_version
