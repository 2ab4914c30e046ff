"""The public gRPC service: one call per request, its answers as chunks and then one `complete`.

When a client cancels, disconnects or reaches its deadline, its sequences in both pools are freed at
once. What waits for a client slower than the cell is sent in one chunk. The same code serves in the
coordinator and in separate front ends; only the cell behind the processor differs.

The transport buffers a few megabytes for a client that has stopped reading. The timeout runs from
the first message that it no longer takes; then everything that the client holds is freed: its
sequences, its stream, and its unsent messages. Lanes never wait for clients, see
`answers/output_queue.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import grpc

from coordinator.reception.input_processor import InputProcessor
from coordinator.reception.pacing import PacketPace, paced
from coordinator.reception.response_stream import (
    ResponseStream,
    write_complete,
    write_parts,
    write_rule,
)
from coordinator.requests.request import inside, outside
from coordinator.requests.validation import check_count
from dspark.errors import Overloaded
from dspark.runtime.roles import Role
from dspark.runtime.security import current_caller
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc

GENERATION = "dspark.wire.v1.Generation"
MAX_ABORTS = 1024


class GenerationService(generate_pb2_grpc.GenerationServicer):
    """gRPC servicer of Generate, Abort and GetModelInfo.

    interval_s: least time between chunks to one client. unread_s: timeout of writing one message.
    pace: hides what the sizes and times of packets reveal of answers.
    """

    def __init__(
        self,
        processor: InputProcessor,
        *,
        interval_s: float = 0.0,
        unread_s: float = 10.0,
        pace: PacketPace | None = None,
    ) -> None:
        self._processor, self._pace = processor, pace
        self._interval_s = interval_s if pace is None else pace.interval_s
        self._unread_s = unread_s

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Streams the answers of a request. Writes each message itself, to set a timeout on it."""
        if not request.traceparent:
            metadata = dict(context.invocation_metadata() or ())
            request.traceparent = str(metadata.get("traceparent", ""))[:64]
        stream = await self._processor.accept(request, context.time_remaining())
        try:
            written = self._as_they_come(stream)
            if self._pace is not None:
                written = paced(written, self._pace, stream.request)
            begun = False
            async with contextlib.aclosing(written) as messages:
                async for message in messages:
                    if not begun:
                        # By itself: behind a first message that is cut off in the middle, and the
                        # metadata with it, gRPC sends no status.
                        await context.send_initial_metadata(())
                        begun = True
                    await self._write(stream, message, context)
        finally:
            stream.leave()

    async def _write(
        self,
        stream: ResponseStream,
        message: generate_pb2.GenerateResponse,
        context: grpc.aio.ServicerContext,
    ) -> None:
        try:
            async with asyncio.timeout(self._unread_s):
                await context.write(message)
        except TimeoutError:
            why = Overloaded(f"the client took nothing for {self._unread_s:g} s", retry_after_s=1.0)
            self._processor.metrics.slow_readers_cut.inc()
            stream.cut(why)
            raise why from None  # sent when the client reads on; its sequences are free already

    async def _as_they_come(
        self, stream: ResponseStream
    ) -> AsyncGenerator[generate_pb2.GenerateResponse]:
        while not stream.done:
            for message in write_parts(stream.request.id, await stream.parts(), stream.scored):
                yield message
            if self._interval_s and not stream.done:
                await asyncio.sleep(self._interval_s)  # what is committed meanwhile is one chunk
        yield write_complete(stream.output)

    async def Abort(
        self, request: generate_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> generate_pb2.AbortReply:
        check_count("request_ids", len(request.request_ids), MAX_ABORTS, "ids")
        caller, abort = current_caller(), self._processor.cell.abort
        if Role.OPERATOR in caller.roles:  # may end any tenant's requests, by the cell's names
            return generate_pb2.AbortReply(aborted=await abort(request.request_ids))
        ended = await abort([inside(caller.tenant, name) for name in request.request_ids])
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
