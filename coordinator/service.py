"""The public interface: one call per request, its answers as chunks and then one `complete`.

A client that cancels, vanishes or runs out of time frees its sequences in both pools at once. What waits for a client
that is slower than the cell goes out in one chunk. The same code serves in the coordinator and in front ends of their
own; only the cell behind the desk differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from coordinator import replies
from coordinator.clock import Clock
from coordinator.frontdesk import FrontDesk
from dspark.errors import Cancelled, Expired, InvalidRequest, PeerError
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

GENERATION = "dspark.wire.v1.Generation"
MAX_REQUEST = 16 * 1024 * 1024  # bytes of one message from anybody; a prompt of millions of tokens fits
MAX_ABORTS = 1024


class GenerationService(generate_pb2_grpc.GenerationServicer):
    """Generate, Abort, GetModelInfo. `interval_s`: least time between the chunks of one client."""

    def __init__(
        self, desk: FrontDesk, clock: Clock, longest_s: float, metrics: Metrics, *, interval_s: float = 0.0
    ) -> None:
        self._desk, self._clock, self._longest_s, self._metrics = desk, clock, longest_s, metrics
        self._interval_s = interval_s

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        remaining = context.time_remaining()
        budget_s = self._longest_s if remaining is None else min(remaining, self._longest_s)
        asked = await self._desk.accept(request, budget_s)
        name, reader, call, outlet = asked.request.id, asked.reader, asked.call, asked.outlet
        timer = self._clock.call_later(budget_s, call.cut, Expired(f"no answer within {budget_s:.3g} s"))
        self._metrics.client_streams.inc()
        try:
            while not reader.done:
                waiting = await outlet.take()
                if waiting is None:
                    raise PeerError("the cell closed a request whose answers have not ended")
                for shown in reader.read(waiting, call.finish):
                    self._metrics.client_chunks.inc()
                    yield replies.chunk(name, shown)
                if self._interval_s and not reader.done:
                    await asyncio.sleep(self._interval_s)  # what comes meanwhile goes out together
            yield replies.complete(reader)
        finally:
            timer.cancel()
            self._metrics.client_streams.dec()
            if reader.unsaid:
                self._metrics.dropped.labels(kind="token", reason="behind_stop_string").inc(reader.unsaid)
            call.cut(Cancelled("the client went away"))  # a no-op unless the call was cut short

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.AbortReply:
        if len(request.request_ids) > MAX_ABORTS:
            raise InvalidRequest("request_ids", f"{len(request.request_ids)} ids, at most {MAX_ABORTS} are allowed")
        return generate_pb2.AbortReply(aborted=await self._desk.cell.abort(request.request_ids))

    async def GetModelInfo(
        self, request: generate_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.GetModelInfoReply:
        terms = self._desk.cell.terms()
        return generate_pb2.GetModelInfoReply(
            model=terms.model,
            drafter=terms.drafter,
            vocab_size=terms.limits.vocab_size,
            context_length=terms.limits.context_length,
            block_size=terms.block_size,
            stop_token_ids=terms.limits.stop_token_ids,
            policy=str(terms.limits.policy),
            rule=replies.rule(terms.limits.rule),
            has_tokenizer=self._desk.tokenizer is not None,
        )
