"""The coordinator's side of attached front ends: one bidirectional stream each.

When the stream ends, the requests of its front end are cancelled. A lane never waits for a front
end: commits collect until the stream sends them in one message, and a front end that leaves too
many unread is disconnected. A request that fails, even by a bug, leaves the others unaffected.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import structlog

from coordinator.answers.answer import CommittedTokens
from coordinator.cells import cell_wire
from coordinator.cells.cell import RequestHandle, SubmitRequest
from coordinator.cells.local_cell import LocalCell
from coordinator.clock import Clock, Timer
from coordinator.requests.request import MAX_TENANT
from coordinator.requests.validation import read_request
from dspark.errors import (
    DsparkError,
    Expired,
    InvalidRequest,
    Overloaded,
    PeerError,
    RequestCancelled,
    Unavailable,
)
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2, frontend_pb2_grpc

log = structlog.get_logger("dspark.cell")

# Parts of messages that may wait for one front end: seconds of all a coordinator can commit.
MAX_UNSENT = 65_536
MAX_ABORTS = 1024
MOST_WAITED_US = 10**12  # eleven days
TERMS_S = 0.25  # longest age of the terms that a front end holds
# How much later than the front end the coordinator ends a request at its deadline.
BACKSTOP_S = 1.0


@dataclass(slots=True, eq=False)
class _Relay:
    """The sink of one request: passes its pieces and its end to the front end's connection."""

    number: int
    to: FrontendConnection
    answers: int = 1
    call: RequestHandle = field(init=False)  # from its submission on
    timer: Timer | None = None

    def push(self, piece: CommittedTokens) -> None:
        self.to.said(self.number, piece)

    def close(self, error: Exception | None = None) -> None:
        self.to.over(self, error)


class FrontendConnection:
    """One attached front end with its requests and unsent messages. `hello` identifies it."""

    def __init__(
        self, cell: LocalCell, hello: frontend_pb2.FrontendHello, clock: Clock, metrics: Metrics
    ) -> None:
        self.hello = hello
        self._cell, self._clock, self._metrics = cell, clock, metrics
        self._calls: dict[int, _Relay] = {}
        self._unsent = frontend_pb2.CellBatch()  # the next message, and the commits that go with it
        self._commits: list[tuple[int, CommittedTokens]] = []
        self._news = asyncio.Event()
        self._messages, self._in_order = 0, cell_wire.InOrder(heard=1)  # the hello was the first
        self._terms: frontend_pb2.Terms | None = None
        self._ended = self._overran = False
        self._refresh: Timer | None = None
        self._tell_terms()

    @property
    def requests(self) -> int:
        return len(self._calls)

    async def next(self) -> frontend_pb2.CellBatch | None:
        """Returns one message of everything since the last call; None at the end of the stream.
        Raises Overloaded when the front end does not read."""
        await self._news.wait()
        self._news.clear()
        if self._overran:
            raise Overloaded("the front end does not read", retry_after_s=1.0)
        return None if self._ended else self._collect()

    def heard(self, batch: frontend_pb2.FrontendBatch) -> None:
        """Handles one message. Raises PeerError when it breaks the protocol."""
        if self._ended or self._overran:
            return
        if not self._in_order.takes(batch.number):
            self._metrics.dropped.labels(kind="batch", reason="repeated").inc()
            return
        for submit in batch.submits:
            self._submit(submit)
        for finish in batch.finishes:
            self._finish(finish)
        for drop in batch.drops:
            relay = self._calls.pop(drop.call, None)
            if relay is None:
                self._metrics.dropped.labels(kind="drop", reason="late").inc()
            else:
                relay.call.cut(cell_wire.read_failure(drop))
        for abort in batch.aborts:
            names = abort.request_ids[:MAX_ABORTS]
            running = [name for name in names if self._cell.admission.abort(name)]
            self._unsent.aborted.add(call=abort.call, request_ids=running)
            self._told()

    def end(self) -> None:
        """Ends the stream: the front end sends no more messages."""
        self._ended = True
        self._news.set()

    def close(self) -> None:
        """Cancels all its requests. Idempotent."""
        self.end()
        if self._refresh is not None:
            self._refresh.cancel()
        relays, self._calls = list(self._calls.values()), {}
        for relay in relays:
            relay.call.cut(RequestCancelled("its front end is gone"))

    # Called by relays.

    def said(self, number: int, piece: CommittedTokens) -> None:
        self._commits.append((number, piece))
        self._told()

    def over(self, relay: _Relay, error: Exception | None) -> None:
        """Removes a request that has ended; `error` is sent to the front end."""
        if relay.timer is not None:
            relay.timer.cancel()
        if self._calls.pop(relay.number, None) is not None and error is not None:
            self._fail(relay.number, error)

    # Requests of the front end.

    def _submit(self, submit: frontend_pb2.Submit) -> None:
        number = submit.call
        if number in self._calls:
            raise PeerError(f"call {number} is running already")
        relay = _Relay(number, self)
        try:
            order = self._order(submit)
            relay.answers = order.request.choices
            self._calls[number] = relay
            relay.call = self._cell.submit(order, relay)
        except Exception as error:
            self._calls.pop(number, None)
            if not isinstance(error, DsparkError):  # a bug
                log.error("frontend.submit_failed", name=self.hello.name, exc_info=error)
                error = PeerError("the request could not be taken in; see the coordinator's log")
            self._fail(number, error)
            return
        if number in self._calls:  # else it was complete, and is over
            late = Expired(f"no answer within {order.lasts_s:.3g} s")
            relay.timer = self._clock.call_later(order.lasts_s + BACKSTOP_S, relay.call.cut, late)

    def _order(self, submit: frontend_pb2.Submit) -> SubmitRequest:
        """Reads and checks a submitted request like any other; the front end is not trusted."""
        message = submit.request
        if not message.request_id:
            raise InvalidRequest("request_id", "a front end has to give one")
        resumed = message.request_id if message.HasField("resume") else ""
        self._cell.check_capacity(submit.tenant, resumed)
        limits = self._cell.terms().limits
        prompt = tuple(message.tokenized.input_ids)
        if len(submit.tenant) > MAX_TENANT or "/" in submit.tenant:
            raise InvalidRequest("tenant", "not a tenant's name")
        name, seed = message.request_id, secrets.randbits(64)
        request = read_request(message, prompt, limits, name=name, seed=seed, tenant=submit.tenant)
        if submit.waited_us > MOST_WAITED_US:
            raise PeerError(f"waited_us: {submit.waited_us} is above {MOST_WAITED_US}")
        arrived = self._clock.time() - submit.waited_us / 1e6
        return SubmitRequest(message, request, arrived, submit.deadline_us / 1e6)

    def _finish(self, finish: frontend_pb2.Finish) -> None:
        relay = self._calls.get(finish.call)
        if relay is None:
            self._metrics.dropped.labels(kind="finish", reason="late").inc()
        elif finish.index >= relay.answers:
            raise PeerError(f"answer {finish.index} of a request for {relay.answers}")
        else:
            relay.call.finish(finish.index)

    # Messages to the front end.

    def _fail(self, number: int, error: Exception) -> None:
        self._unsent.failed.append(cell_wire.write_failure(number, error))
        self._told()

    def _told(self) -> None:
        """Wakes the sender of messages; disconnects a front end that leaves too many unread."""
        self._news.set()
        unsent, commits = self._unsent, self._commits
        if (
            len(commits) + len(unsent.failed) + len(unsent.aborted) > MAX_UNSENT
            and not self._overran
        ):
            log.warning("frontend.not_read", name=self.hello.name, commits=len(commits))
            self._metrics.dropped.labels(kind="commit", reason="not_read").inc(len(commits))
            self._overran = True
            self._unsent, self._commits = frontend_pb2.CellBatch(), []
            self._clock.call_later(0.0, self.close)  # not now: a lane is in the middle of a verdict

    def _tell_terms(self) -> None:
        """Queues the terms if they have changed; calls itself again after TERMS_S."""
        try:
            if self._cell.admission.draining:
                raise Unavailable("the coordinator is draining; try another one")
            terms = cell_wire.write_terms(self._cell.terms())
        except Unavailable as error:
            terms = frontend_pb2.Terms(closed=str(error))
        if terms != self._terms:
            self._terms = terms
            self._unsent.terms.CopyFrom(terms)
            self._news.set()
        self._refresh = self._clock.call_later(TERMS_S, self._tell_terms)

    def _collect(self) -> frontend_pb2.CellBatch:
        batch, self._unsent = self._unsent, frontend_pb2.CellBatch()
        commits, self._commits = self._commits, []
        self._messages += 1
        batch.number = self._messages
        cell_wire.write_commits(batch, commits)
        self._metrics.cell_batches.labels(direction="out").inc()
        return batch


CELL = "dspark.wire.v1.Cell"
HELLO_S = 5.0  # longest wait for a front end's first message
MAX_FRONTENDS = 256


class CellService(frontend_pb2_grpc.CellServicer):
    """gRPC servicer of Attach."""

    def __init__(self, cell: LocalCell, clock: Clock, metrics: Metrics) -> None:
        self._cell, self._clock, self._metrics = cell, clock, metrics
        self.attached: list[FrontendConnection] = []

    async def Attach(
        self,
        request_iterator: AsyncIterator[frontend_pb2.FrontendBatch],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[frontend_pb2.CellBatch]:
        batches = aiter(request_iterator)
        hello = await _hello(batches)
        if len(self.attached) >= MAX_FRONTENDS:
            self._metrics.dropped.labels(kind="frontend", reason="too_many").inc()
            raise Overloaded(f"{MAX_FRONTENDS} front ends are attached already", retry_after_s=5.0)
        attachment = FrontendConnection(self._cell, hello, self._clock, self._metrics)
        self.attached.append(attachment)
        self._count()
        log.info(
            "frontend.attached", name=attachment.hello.name, endpoint=attachment.hello.endpoint
        )
        reader = asyncio.create_task(self._read(batches, attachment))
        try:
            while (batch := await attachment.next()) is not None:
                yield batch
            await reader
        finally:
            self.attached.remove(attachment)
            self._count()
            log.info("frontend.left", name=attachment.hello.name, requests=attachment.requests)
            attachment.close()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _count(self) -> None:
        self._metrics.pool_replicas.labels(pool="frontend", state="serving").set(len(self.attached))

    async def _read(
        self, batches: AsyncIterator[frontend_pb2.FrontendBatch], attachment: FrontendConnection
    ) -> None:
        try:
            async for batch in batches:
                self._metrics.cell_batches.labels(direction="in").inc()
                attachment.heard(batch)
        finally:
            attachment.end()


async def _hello(batches: AsyncIterator[frontend_pb2.FrontendBatch]) -> frontend_pb2.FrontendHello:
    try:
        async with asyncio.timeout(HELLO_S):
            first = await anext(batches)
    except TimeoutError:
        raise Expired(f"no hello within {HELLO_S:g} s") from None
    except StopAsyncIteration:
        raise InvalidRequest("hello", "the stream ended without one") from None
    if not first.HasField("hello"):
        raise InvalidRequest("hello", "has to be in the first message")
    return first.hello
