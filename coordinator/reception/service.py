"""The public interface: one call per request, its answers as chunks and then one `complete`.

A client that cancels, vanishes or runs out of time frees its sequences in both pools at once. What waits for a client
that is slower than the cell goes out in one chunk. The same code serves in the coordinator and in front ends of their
own; only the cell behind the processor differs.

The transport takes a few megabytes for a client that has stopped reading before anybody notices; from the first message
that it does not take any more, time runs. Lanes never wait for clients, see `answers/output_queue.py`; what such a
client still holds is freed: its sequences, its place among the streams, and what was written for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import grpc

from coordinator.clock import Clock, Timer
from coordinator.reception.input_processor import InputProcessor
from coordinator.reception.pacing import PacketPace, paced
from coordinator.reception.response_stream import ResponseStream, write_complete, write_parts, write_rule
from coordinator.requests.request import inside, outside
from dspark.errors import InvalidRequest, Overloaded
from dspark.runtime.roles import Role
from dspark.runtime.security import current_caller
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

LOOKS = 10  # in the time one may take


class ReadWatch:
    """One client's stream; `cut` ends its request, for the reason given."""

    def __init__(self, watches: ReadWatches, cut: Callable[[Exception], None]) -> None:
        self._watches, self._cut = watches, cut
        self._task = asyncio.current_task()
        self.since: float | None = None  # clock time at which a message was offered that is not taken yet
        self.why: Exception | None = None  # it was cut

    def offered(self) -> None:
        self.since = self._watches.now()

    def taken(self) -> None:
        self.since = None

    def end(self) -> None:
        """It has nothing more to read."""
        self._watches.forget(self)

    def stop(self, why: Exception) -> None:
        """Ends the request, and the task that waits for the client."""
        self.why = why
        self._cut(why)
        if self._task is not None:
            self._task.cancel()


class ReadWatches:
    """All clients of a front end. One timer for all, and none while nobody is there."""

    def __init__(self, longest_s: float, clock: Clock, metrics: Metrics) -> None:
        self._longest_s, self._clock, self._metrics = longest_s, clock, metrics
        self._all: dict[ReadWatch, None] = {}
        self._timer: Timer | None = None

    def now(self) -> float:
        return self._clock.time()

    def begin(self, cut: Callable[[Exception], None]) -> ReadWatch:
        """Call it in the task that writes."""
        made = ReadWatch(self, cut)
        self._all[made] = None
        if self._timer is None:
            self._timer = self._clock.call_later(self._longest_s / LOOKS, self._look)
        return made

    def forget(self, watch: ReadWatch) -> None:
        self._all.pop(watch, None)

    def _look(self) -> None:
        before = self.now() - self._longest_s
        late = [each for each in self._all if each.since is not None and each.since <= before]
        for each in late:
            self.forget(each)
            self._metrics.slow_readers_cut.inc()
            each.stop(Overloaded(f"the client took nothing for {self._longest_s:g} s", retry_after_s=1.0))
        self._timer = self._clock.call_later(self._longest_s / LOOKS, self._look) if self._all else None


GENERATION = "dspark.wire.v1.Generation"
MAX_ABORTS = 1024


class GenerationService(generate_pb2_grpc.GenerationServicer):
    """Generate, Abort, GetModelInfo.

    interval_s: least time between the chunks of one client. unread_s: how long it may leave one untaken. pace: hides
    what packets tell of answers.
    """

    def __init__(
        self,
        processor: InputProcessor,
        *,
        interval_s: float = 0.0,
        unread_s: float = 10.0,
        pace: PacketPace | None = None,
    ) -> None:
        self._processor, self._interval_s, self._pace = processor, interval_s, pace
        self._watches = ReadWatches(unread_s, processor.clock, processor.metrics)

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        if not request.traceparent:
            metadata = dict(context.invocation_metadata() or ())
            request.traceparent = str(metadata.get("traceparent", ""))[:64]
        stream = await self._processor.accept(request, context.time_remaining())
        watch = self._watches.begin(stream.cut)
        try:
            written = self._as_they_come(stream) if self._pace is None else paced(stream, self._pace)
            async with contextlib.aclosing(written) as messages:
                async for message in messages:
                    watch.offered()
                    yield message
                    watch.taken()
        except asyncio.CancelledError:
            if watch.why is None:
                raise
            raise watch.why from None  # said when it reads on; what it held is free already
        finally:
            watch.end()
            stream.leave()

    async def _as_they_come(self, stream: ResponseStream) -> AsyncGenerator[generate_pb2.GenerateResponse]:
        while not stream.done:
            for message in write_parts(stream.request.id, await stream.parts(), stream.scored):
                yield message
            if self._interval_s and not stream.done:
                await asyncio.sleep(self._interval_s)  # what comes meanwhile goes out together
        yield write_complete(stream.output)

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.AbortReply:
        if len(request.request_ids) > MAX_ABORTS:
            raise InvalidRequest("request_ids", f"{len(request.request_ids)} ids, at most {MAX_ABORTS} are allowed")
        caller = current_caller()
        if Role.OPERATOR in caller.roles:  # of any tenant, under the cell's own names
            return generate_pb2.AbortReply(aborted=await self._processor.cell.abort(request.request_ids))
        names = [inside(caller.tenant, name) for name in request.request_ids]
        ended = await self._processor.cell.abort(names)
        return generate_pb2.AbortReply(aborted=[outside(caller.tenant, name) for name in ended])

    async def GetModelInfo(
        self, request: generate_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.GetModelInfoReply:
        terms = self._processor.cell.terms()
        return generate_pb2.GetModelInfoReply(
            model=terms.model,
            drafter=terms.drafter,
            vocab_size=terms.limits.vocab_size,
            context_length=terms.limits.longest,
            block_size=terms.block_size,
            stop_token_ids=terms.limits.stop_token_ids,
            policy=str(terms.limits.policy),
            rule=write_rule(terms.limits.rule),
            has_tokenizer=self._processor.tokenizer is not None,
        )
