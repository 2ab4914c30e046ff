"""Where front ends attach: one stream each, for everything they ask and everything they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import structlog

from coordinator.cells.attachment import Attachment
from coordinator.cells.local_cell import LocalCell
from coordinator.clock import Clock
from dspark.errors import Expired, InvalidRequest, Overloaded
from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import frontend_pb2, frontend_pb2_grpc

log = structlog.get_logger("dspark.cell")

CELL = "dspark.wire.v1.Cell"
HELLO_S = 5.0  # for a front end to say who it is
MAX_FRONTENDS = 256


class CellService(frontend_pb2_grpc.CellServicer):
    """Attach."""

    def __init__(self, cell: LocalCell, clock: Clock, metrics: Metrics) -> None:
        self._cell, self._clock, self._metrics = cell, clock, metrics
        self.attached: list[Attachment] = []

    async def Attach(
        self, request_iterator: AsyncIterator[frontend_pb2.FrontendBatch], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[frontend_pb2.CellBatch]:
        if len(self.attached) >= MAX_FRONTENDS:
            self._metrics.dropped.labels(kind="frontend", reason="too_many").inc()
            raise Overloaded(f"{MAX_FRONTENDS} front ends are attached already", retry_after_s=5.0)
        batches = aiter(request_iterator)
        attachment = Attachment(self._cell, await _hello(batches), self._clock, self._metrics)
        self.attached.append(attachment)
        self._count()
        log.info("frontend.attached", name=attachment.hello.name, endpoint=attachment.hello.endpoint)
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

    async def _read(self, batches: AsyncIterator[frontend_pb2.FrontendBatch], attachment: Attachment) -> None:
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
