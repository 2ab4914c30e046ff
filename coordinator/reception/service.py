"""The public interface: one call per request, its answers as chunks and then one `complete`.

A client that cancels, vanishes or runs out of time frees its sequences in both pools at once. What waits for a client
that is slower than the cell goes out in one chunk. The same code serves in the coordinator and in front ends of their
own; only the cell behind the desk differs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc

from coordinator.clock import Clock
from coordinator.reception import replies
from coordinator.reception.answering import Answering
from coordinator.reception.frontdesk import FrontDesk
from coordinator.reception.pacing import Pace, paced
from coordinator.reception.readers import Readers
from coordinator.requests.tenancy import inside, outside
from dspark.errors import InvalidRequest
from dspark.runtime.roles import Role
from dspark.runtime.security import current_caller
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

GENERATION = "dspark.wire.v1.Generation"
MAX_ABORTS = 1024


class GenerationService(generate_pb2_grpc.GenerationServicer):
    """Generate, Abort, GetModelInfo.

    interval_s: least time between the chunks of one client. unread_s: how long it may leave one untaken. pace: hides
    what packets tell of answers.
    """

    def __init__(
        self,
        desk: FrontDesk,
        clock: Clock,
        longest_s: float,
        metrics: Metrics,
        *,
        interval_s: float = 0.0,
        unread_s: float = 10.0,
        pace: Pace | None = None,
    ) -> None:
        self._desk, self._clock, self._longest_s, self._metrics = desk, clock, longest_s, metrics
        self._interval_s, self._pace = interval_s, pace
        self._readers = Readers(unread_s, clock, metrics)

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        remaining = context.time_remaining()
        budget_s = self._longest_s if remaining is None else min(remaining, self._longest_s)
        if not request.traceparent:
            metadata = dict(context.invocation_metadata() or ())
            request.traceparent = str(metadata.get("traceparent", ""))[:64]
        answering = await Answering.begin(self._desk, request, budget_s, self._clock, self._metrics)
        reading = self._readers.begin(answering.cut)
        name = answering.request.id
        try:
            if self._pace is not None:
                async with contextlib.aclosing(paced(answering, self._pace)) as messages:
                    async for message in messages:
                        reading.offered()
                        yield message
                        reading.taken()
                return
            while not answering.done:
                for message in replies.parts(name, await answering.parts(), answering.scored):
                    reading.offered()
                    yield message
                    reading.taken()
                if self._interval_s and not answering.done:
                    await asyncio.sleep(self._interval_s)  # what comes meanwhile goes out together
            reading.offered()
            yield replies.complete(answering.reader)
        except asyncio.CancelledError:
            if reading.why is None:
                raise
            raise reading.why from None  # said when it reads on; what it held is free already
        finally:
            reading.end()
            answering.leave()

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.AbortReply:
        if len(request.request_ids) > MAX_ABORTS:
            raise InvalidRequest("request_ids", f"{len(request.request_ids)} ids, at most {MAX_ABORTS} are allowed")
        caller = current_caller()
        if Role.OPERATOR in caller.roles:  # of any tenant, under the cell's own names
            return generate_pb2.AbortReply(aborted=await self._desk.cell.abort(request.request_ids))
        names = [inside(caller.tenant, name) for name in request.request_ids]
        ended = await self._desk.cell.abort(names)
        return generate_pb2.AbortReply(aborted=[outside(caller.tenant, name) for name in ended])

    async def GetModelInfo(
        self, request: generate_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.GetModelInfoReply:
        terms = self._desk.cell.terms()
        return generate_pb2.GetModelInfoReply(
            model=terms.model,
            drafter=terms.drafter,
            vocab_size=terms.limits.vocab_size,
            context_length=terms.limits.longest,
            block_size=terms.block_size,
            stop_token_ids=terms.limits.stop_token_ids,
            policy=str(terms.limits.policy),
            rule=replies.rule(terms.limits.rule),
            has_tokenizer=self._desk.tokenizer is not None,
        )
