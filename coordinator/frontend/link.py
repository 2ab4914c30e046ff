"""One stream to a coordinator: its open requests, and the messages that wait to be sent.

All messages of one tick of the event loop are sent as one batch. Commits of requests that have
ended here are dropped and counted: they were made before the coordinator received the end.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from coordinator.answers.answer import CommittedTokens
from coordinator.answers.output_queue import OutputSink
from coordinator.cells import cell_wire
from coordinator.cells.cell import SubmitRequest
from coordinator.clock import Clock
from dspark.errors import Overloaded, PeerError, Unavailable
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2, generate_pb2

MAX_UNSENT = 65_536  # parts of messages that wait for the coordinator to read
BATCH_BYTES = 2 * 1024 * 1024  # of one batch, unless a request alone is larger


class RemoteHandle:
    """A request that was sent to the coordinator."""

    def __init__(
        self, number: int, link: CoordinatorConnection, sink: OutputSink, answers: int
    ) -> None:
        self.number, self.sink = number, sink
        self._link = link
        self._said = [0] * answers  # tokens received, by answer
        self._open = set(range(answers))

    def finish(self, index: int) -> None:
        """Ends an answer, and reports that unless the coordinator has ended it itself."""
        if index in self._open:
            self._link.send("finishes", frontend_pb2.Finish(call=self.number, index=index))
            self._ended(index)

    def cut(self, error: Exception) -> None:
        if self._link.forget(self):
            self._link.send("drops", cell_wire.write_failure(self.number, error))
            self.sink.close(error)

    def fail(self, error: Exception) -> None:
        """Ends the request with an error: the coordinator sent one, or its stream ended."""
        self._link.forget(self)
        self.sink.close(error)

    def push(self, piece: CommittedTokens) -> None:
        if piece.index >= len(self._said):
            raise PeerError(f"answer {piece.index} of a request for {len(self._said)}")
        self._said[piece.index] += len(piece.tokens)
        self.sink.push(piece)
        if piece.end is not None:
            self._ended(piece.index)

    @property
    def stands(self) -> str:
        """States for error messages how many tokens of the first answer have arrived."""
        return f"the answer stands at offset {self._said[0]}"

    def _ended(self, index: int) -> None:
        self._open.discard(index)
        if not self._open and self._link.forget(self):
            self.sink.close()


class CoordinatorConnection:
    """State of one stream to a coordinator, and the iterator of the batches it sends."""

    def __init__(self, hello: frontend_pb2.FrontendHello, clock: Clock, metrics: Metrics) -> None:
        self._hello: frontend_pb2.FrontendHello | None = hello  # until it is sent
        self._clock, self._metrics = clock, metrics
        self._numbers = itertools.count(1)
        self._calls: dict[int, RemoteHandle] = {}
        self._aborts: dict[int, asyncio.Future[list[str]]] = {}
        self._unsent: deque[tuple[str, Any]] = deque()
        self._news = asyncio.Event()
        self._messages, self._in_order = 0, cell_wire.InOrder()
        self._ended = False

    @property
    def requests(self) -> int:
        return len(self._calls)

    async def __aiter__(self) -> AsyncIterator[frontend_pb2.FrontendBatch]:
        """Yields the batches for the coordinator, until `cut_all`."""
        while True:
            while self._unsent or self._hello is not None:
                yield self._collect()
            if self._ended:
                return
            await self._news.wait()
            self._news.clear()

    def submit(self, order: SubmitRequest, sink: OutputSink) -> RemoteHandle:
        self._check_room()
        call = RemoteHandle(next(self._numbers), self, sink, order.request.choices)
        message = generate_pb2.GenerateRequest()
        message.CopyFrom(order.message)
        message.request_id = order.request.id
        message.sampling_params.ClearField("stop")  # stop strings are matched here
        message.tokenized.CopyFrom(generate_pb2.TokenizedInput(input_ids=order.request.prompt))
        waited = max(self._clock.time() - order.arrived, 0.0)
        submit = frontend_pb2.Submit(
            call=call.number,
            request=message,
            waited_us=int(waited * 1e6),
            deadline_us=int(order.lasts_s * 1e6),
            tenant=order.request.tenant,
        )
        self._calls[call.number] = call
        self.send("submits", submit)
        return call

    async def abort(self, request_ids: Sequence[str]) -> list[str]:
        self._check_room()
        number = next(self._numbers)
        reply: asyncio.Future[list[str]] = self._clock.create_future()
        self._aborts[number] = reply
        self.send("aborts", frontend_pb2.AbortCall(call=number, request_ids=request_ids))
        try:
            return await reply
        finally:
            self._aborts.pop(number, None)

    def send(self, part: str, message: Any) -> None:
        self._unsent.append((part, message))
        self._news.set()

    def heard(self, batch: frontend_pb2.CellBatch) -> None:
        """Applies a batch from the coordinator. Raises PeerError when it breaks the protocol."""
        if not self._in_order.takes(batch.number):
            self._metrics.dropped.labels(kind="batch", reason="repeated").inc()
            return
        late = 0
        for number, piece in cell_wire.read_commits(batch):
            call = self._calls.get(number)
            if call is None:
                late += len(piece.tokens)
                continue
            try:
                call.push(piece)
            except Overloaded as slow:
                self._metrics.slow_readers_cut.inc()
                call.cut(slow)
        if late:
            self._metrics.dropped.labels(kind="token", reason="late").inc(late)
        for failed in batch.failed:
            call = self._calls.get(failed.call)
            if call is None:
                self._metrics.dropped.labels(kind="failure", reason="late").inc()
            else:
                call.fail(cell_wire.read_failure(failed))
        for aborted in batch.aborted:
            reply = self._aborts.get(aborted.call)
            if reply is not None and not reply.done():
                reply.set_result(list(aborted.request_ids))

    def forget(self, call: RemoteHandle) -> bool:
        """Removes a request; returns whether it was still open."""
        return self._calls.pop(call.number, None) is not None

    def cut_all(self, why: str) -> None:
        """Ends everything that is open with Unavailable; nothing more is sent."""
        self._ended = True
        self._unsent.clear()
        for call in list(self._calls.values()):
            call.fail(Unavailable(f"{why}; {call.stands}"))
        for reply in self._aborts.values():
            if not reply.done():
                reply.set_exception(Unavailable(why))
        self._news.set()

    def _check_room(self) -> None:
        """Raises Overloaded when too much is unsent; messages of open requests are bounded."""
        if len(self._unsent) >= MAX_UNSENT:
            raise Overloaded("the coordinator does not read", retry_after_s=1.0)

    def _collect(self) -> frontend_pb2.FrontendBatch:
        self._messages += 1
        batch, size = frontend_pb2.FrontendBatch(hello=self._hello, number=self._messages), 0
        self._hello = None
        while self._unsent:
            part, message = self._unsent[0]
            if size and size + message.ByteSize() > BATCH_BYTES:
                break
            getattr(batch, part).append(message)
            size += message.ByteSize()
            self._unsent.popleft()
        self._metrics.cell_batches.labels(direction="out").inc()
        return batch
