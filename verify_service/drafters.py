"""The drafters of one control stream: their streams, outstanding orders and received blocks.

Runs in turns (see `round_driver`). A drafter cannot stop the verifier: sending never waits, and one
whose stream breaks, is not answered or breaks the protocol is lost, and tried again after a pause.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from dspark.errors import PeerError
from dspark.rounds.control import DrafterAt, DrafterUse
from dspark.rounds.events import (
    BlocksCame,
    DrafterEvent,
    DrafterLost,
    OrderRow,
    PassRow,
    SendOrder,
    SendRows,
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
from verify_service.row_feeds import RowFeed

log = structlog.get_logger("dspark.rounds")

PAUSE_S = 1.0  # after a stream broke, before the drafter is tried again
KEEP_S = 10.0  # between two KeepContexts messages
GREETING_S = 5.0  # timeout for the welcome of a drafter
# in a row, after which a drafter is lost
MALFORMED_ORDERS = 3
MAX_VERSION = MAX_ENDPOINT = 256  # characters
# Host name or address and port: nothing that gRPC resolves as a file or by another scheme.
_ENDPOINT = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")


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
class _Link:
    """The streams to a drafter, from their beginning to their end."""

    stream: DrafterStream
    rows: RowFeed
    begun: float  # when they were opened
    kept: float  # when KeepContexts was last sent
    version: str = ""  # of the drafter; set by its welcome
    malformed: int = 0  # answered orders in a row without a sound block


class Drafters:
    """All drafters of a stream. tell: runs a function in a turn of the device thread and feeds its
    result to the loop; `tell_here` does so on the calling thread."""

    def __init__(
        self,
        worker: Worker[EngineCore],
        events: asyncio.AbstractEventLoop,
        tell: Callable[[Callable[[], Iterable[Told]]], None],
        tell_here: Callable[[Callable[[], Iterable[Told]]], None],
        news: RoundNews,
    ) -> None:
        self._worker, self._engine, self._metrics = worker, worker.engine, worker.metrics
        self._events = events
        self._news = news
        self._tell, self._tell_here = tell, tell_here
        self._rows_sent = worker.metrics.feature_rows.labels(direction="sent")
        self._bytes_sent = worker.metrics.bytes.labels(direction="sent", kind="features")
        self._zeroed = worker.metrics.dropped.labels(kind="feature_rows", reason="not_finite")
        self._known: dict[int, DrafterAt] = {}  # as first told of, with its use of now
        self._links: dict[int, _Link] = {}
        self._broke: dict[int, float] = {}  # when the streams to a known one ended last
        self._orders: dict[int, OutstandingOrder] = {}

    # Called for the coordinator.

    def told_of(self, at: DrafterAt) -> list[Told]:
        # a known drafter keeps its stream
        self._known[at.drafter] = self._known.get(at.drafter, at)._replace(use=at.use)
        if at.use is not DrafterUse.GONE:
            return []
        lost = self._lose(at.drafter, "lost: gone") if at.drafter in self._links else []
        del self._known[at.drafter]
        self._broke.pop(at.drafter, None)
        return lost

    # Called by the round loop.

    def open(self, drafter: int, sequence: int, epoch: int) -> list[Told]:
        state = self._engine.find(sequence, epoch)
        if state is None:
            return []  # refused or freed in the same turn
        link = self._linked(drafter)
        if link is None:
            return [DrafterLost(drafter, "lost: cannot be asked now")]
        told = draft_pb2.OpenContext(
            sequence=sequence,
            epoch=epoch,
            reserve_tokens=state.longest,
            # only the target applies grammars
            sampling=codec.write_sampling(replace(state.params, constraint=None)),
        )
        link.rows.open((sequence, epoch))
        link.stream.send(draft_pb2.RoundsCommand(open=told))
        return []

    def close(self, drafter: int, sequence: int, epoch: int) -> None:
        if (link := self._links.get(drafter)) is not None:
            link.rows.close((sequence, epoch))
            ref = types_pb2.SequenceRef(sequence=sequence, epoch=epoch)
            link.stream.send(
                draft_pb2.RoundsCommand(close=draft_pb2.CloseContexts(sequences=[ref]))
            )

    def send_rows(self, asked: SendRows) -> None:
        link = self._links.get(asked.drafter)
        if link is not None:  # else the drafter is lost, and a DrafterLost follows
            link.rows.send((asked.sequence, asked.epoch), asked.start, asked.stop)

    def order(self, asked: SendOrder) -> list[Told]:
        link = self._links.get(asked.drafter)
        if link is None:
            return [DrafterLost(asked.drafter, "lost: there is no stream")]
        try:
            kept = self._engine.kept_rows(asked.rows)
        except Exception as error:  # out of memory, say: it costs this drafter, not the stream
            log.error("rows.not_read", drafter=asked.drafter, exc_info=error)
            return self._lose(asked.drafter, "lost: its rows cannot be read")
        for message in orders.write_order(asked.order, asked.rows, *kept):
            link.stream.send(message)
        self._orders[asked.order] = OutstandingOrder(asked.drafter, asked.rows, time.monotonic())
        if kept.features is not None:
            self._rows_sent.inc(len(kept.token_ids))
            self._bytes_sent.inc(len(kept.features.data))
            self._zeroed.inc(kept.features.zeroed)
        return []

    def leaving(self) -> bool:
        """Whether a message to any drafter has not been sent yet."""
        return any(link.stream.leaving for link in self._links.values())

    def let_go(self, drafter: int) -> None:
        """Closes the stream of a drafter that the loop has given up."""
        if drafter in self._links:
            self._lose(drafter, "lost: given up")

    def end(self) -> None:
        """Closes every stream."""
        for drafter, link in self._links.items():
            try:
                link.stream.close()
                link.rows.end()
            except Exception as error:  # the others are closed all the same
                log.error("drafter.not_closed", drafter=drafter, exc_info=error)

    # Time.

    def next_at(self) -> float | None:
        """Earliest time when `overdue` has work, in monotonic seconds; None: never."""
        due = [link.rows.overdue_at for link in self._links.values()]
        due += [
            link.kept + KEEP_S if link.version else link.begun + GREETING_S
            for link in self._links.values()
        ]
        return min((each for each in due if each is not None), default=None)

    def overdue(self, now: float) -> list[Told]:
        """Sends KeepContexts where it is due; drafters that have sent no welcome by now, or take no
        rows, are lost."""
        lost: list[Told] = []
        for drafter, link in list(self._links.items()):
            if not link.version and now >= link.begun + GREETING_S:
                lost += self._lose(drafter, "lost: does not answer")
            elif (late := link.rows.overdue_at) is not None and now >= late:
                lost += self._lose(drafter, "lost: it takes no rows")
            elif link.version and now >= link.kept + KEEP_S:
                link.kept = now
                refs = [
                    types_pb2.SequenceRef(sequence=at[0], epoch=at[1]) for at in link.rows.contexts
                ]
                link.stream.send(
                    draft_pb2.RoundsCommand(keep=draft_pb2.KeepContexts(sequences=refs))
                )
        return lost

    # Streams.

    def _linked(self, drafter: int) -> _Link | None:
        """The drafter's streams, opened if it has none and may have some."""
        known, link = self._known.get(drafter), self._links.get(drafter)
        if known is None or not self._engine.projection:
            return None
        now = time.monotonic()
        paused = now < self._broke.get(drafter, -PAUSE_S) + PAUSE_S
        may = known.use is DrafterUse.YES and not paused
        if link is None and may and _can_be(known.endpoint):
            hello = draft_pb2.RoundsHello(
                drafter_incarnation=known.incarnation,
                verifier_incarnation=self._worker.incarnation,
                projection=self._engine.projection,
            )
            rows = RowFeed(self._worker, self._events, known, self._tell)
            endpoint = known.endpoint
            try:
                stream = DrafterStream(
                    endpoint,
                    hello,
                    self._worker.security,
                    lambda *came: self._tell_here(lambda: self._came(drafter, *came)),
                    lambda *lost: self._tell(lambda: self._ended(drafter, *lost)),
                )
                stream.idle = self._news.orders_left
            # unreadable certificates, no thread: tried again after PAUSE_S
            except Exception as error:
                log.warning(
                    "drafter.unreachable", drafter=drafter, endpoint=endpoint, exc_info=error
                )
                self._broke[drafter] = now
                return None
            link = self._links[drafter] = _Link(stream, rows, now, now)
        return link

    def _ended(self, drafter: int, stream: DrafterStream, why: str) -> list[Told]:
        link = self._links.get(drafter)
        if link is None or link.stream is not stream:
            return []  # this stream was replaced or closed before
        return self._lose(drafter, f"lost: {why}")

    def _lose(self, drafter: int, why: str) -> list[Told]:
        link, endpoint = self._links.pop(drafter), self._known[drafter].endpoint
        log.warning("drafter.lost", drafter=drafter, endpoint=endpoint, reason=why)
        link.stream.close()
        link.rows.end()
        self._broke[drafter] = time.monotonic()
        self._orders = {at: each for at, each in self._orders.items() if each.drafter != drafter}
        return [DrafterLost(drafter, why)]

    def _came(
        self, drafter: int, stream: DrafterStream, event: draft_pb2.RoundsEvent
    ) -> Iterable[Told]:
        link = self._links.get(drafter)
        if link is None or link.stream is not stream:
            self._metrics.dropped.labels(kind="event", reason="stream_is_over").inc()
            return ()
        try:
            match event.WhichOneof("event"):
                case "welcome":
                    _greet(self._known[drafter], link, event.welcome)
                case "opened":
                    self._context(drafter, link, event.opened)
                case "blocks":
                    return [self._blocks(drafter, link, event.blocks)]
                case _:
                    raise PeerError("event: is empty")
        except PeerError as error:
            self._metrics.dropped.labels(kind="block", reason="malformed").inc()
            return self._lose(drafter, f"malformed: {error}")
        return ()

    def _context(self, drafter: int, link: _Link, opened: draft_pb2.ContextOpened) -> None:
        key = (opened.sequence, opened.epoch)
        if key not in link.rows.contexts:  # closed in the meantime, or never opened
            self._metrics.dropped.labels(kind="context", reason="stale").inc()
            return
        if not opened.HasField("refusal"):
            link.rows.opened(key)
            return
        link.rows.close(key)
        self._metrics.dropped.labels(kind="context", reason="refused").inc()
        if codec.read_refusal(opened.refusal).reason is RefusalReason.NO_PAGES:
            self._news.add(DrafterEvent(drafter, "full"))

    def _blocks(self, drafter: int, link: _Link, message: draft_pb2.Blocks) -> Told:
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
                _count(link, True)
            self._metrics.dropped.labels(kind="block", reason="malformed").inc(len(blocks.spoilt))
        del self._orders[message.order]
        came = time.monotonic()
        # a drafter may be wrong about its time: no draft took longer than its answer
        draft_s = min(message.forward_ns * 1e-9, came - order.sent)
        answer = AnsweredOrder(
            message.order, drafter, link.version, blocks, order.sent, came, draft_s
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
            link = self._links.get(answer.drafter)
            whole = len(answer.blocks.spoilt) == len(answer.blocks.lengths)
            if link is None or not (whole or order in good):
                continue
            try:
                _count(link, whole)
            except PeerError as error:
                lost += self._lose(answer.drafter, f"malformed: {error}")
        return lost


_WHY = {
    reason: "" if reason is EmptyReason.NONE else reason.name.lower().replace("_", " ")
    for reason in EmptyReason
}


def _count(link: _Link, whole: bool) -> None:
    """Counts an answered order. whole: it has no sound block. Raises PeerError after
    MALFORMED_ORDERS of those in a row."""
    link.malformed = link.malformed + 1 if whole else 0
    if link.malformed >= MALFORMED_ORDERS:
        raise PeerError(
            f"blocks: those of {link.malformed} orders in a row cannot have been drafted"
        )


def _can_be(endpoint: str) -> bool:
    """Whether an endpoint is a host and a port."""
    fits = len(endpoint) <= MAX_ENDPOINT and _ENDPOINT.fullmatch(endpoint)
    return bool(fits) and int(endpoint.rpartition(":")[2]) <= 65535


def _greet(sink: DrafterAt, link: _Link, welcome: draft_pb2.RoundsWelcome) -> None:
    if welcome.incarnation != sink.incarnation:
        raise PeerError(f"welcome.incarnation: {welcome.incarnation} is another process")
    if not 0 < len(welcome.drafter_version) <= MAX_VERSION:
        raise PeerError(f"welcome.drafter_version: {len(welcome.drafter_version)} characters")
    link.version = welcome.drafter_version
