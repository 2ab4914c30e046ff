"""The Verify servicer: description of the verifier, and a control stream per coordinator, plans in
and reports out. The end of a stream frees all that it opened.

A malformed message ends the stream with an error that names the field. The stream is the lease of
all its sequences: it also ends when the coordinator sends nothing for `lease_s`, because a
coordinator may hang while its connection stays up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

import grpc
import structlog

from dspark.errors import InvalidRequest, PeerError, Unavailable
from dspark.rounds.control import Draining, Up
from dspark.runtime.backlog import Backlog
from dspark.runtime.outbox import Outbox
from dspark.runtime.wire_limits import KIB, Bounds, Read
from dspark.runtime.worker import Worker, new_owner
from dspark.types import MAX_FORM
from dspark.wire import cohorts
from dspark.wire.control_down import MAX_SALT, read_down
from dspark.wire.control_up import write_up
from dspark.wire.v1 import types_pb2, verify_pb2, verify_pb2_grpc
from verify_service.engine_core import EngineCore
from verify_service.round_driver import RoundDriver

log = structlog.get_logger("dspark.rounds")

NAME = "dspark.wire.v1.Verify"
MAX_ORDERS = 1 << 16  # per message


def control_bounds(context_length: int) -> Bounds:
    """Size bounds of control messages to a verifier with this context length (tokens)."""
    column = 5 * cohorts.MAX_ROWS
    admission = {
        3: ("token_ids", 5 * context_length),
        4: ("sampling", 64 * KIB + MAX_FORM),
        6: ("stop_ids", column),
        9: ("cache_salt", 4 * MAX_SALT),
    }
    plan = {
        2: ("plan.terms", KIB),
        6: ("plan.sequence", 2 * column),
        7: ("plan.drafter", column),
        9: ("plan.own_terms", column),
        10: ("plan.other_terms", KIB),
    }
    columns = {1: ("sequence", 2 * column), 2: ("epoch", column), 3: ("through_round", column)}
    order = Bounds(
        {2: ("drafter", 2 * KIB)},
        inner={
            1: Bounds(admission),
            3: Bounds(plan, most=cohorts.MAX_ROWS),
            4: Bounds(columns),
            5: Bounds({**columns, 3: ("drop", column)}),
            6: Bounds(columns),
        },
    )
    return Bounds({}, most=MAX_ORDERS, inner={2: order})


class VerifyService(verify_pb2_grpc.VerifyServicer):
    """Serves the Describe and Control methods."""

    def __init__(self, worker: Worker[EngineCore]) -> None:
        self._worker = worker

    async def Describe(
        self, request: types_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> verify_pb2.VerifierDescription:
        engine = self._worker.engine
        return verify_pb2.VerifierDescription(
            model=engine.config.target,
            vocab_size=engine.target.vocab_size,
            context_length=engine.target.context_length,
            hidden_size=engine.feature_width,
            projection=engine.projection,
            attention_path=engine.attention_path,
            attention_reason=engine.attention_reason,
            feature_dtype=engine.config.feature_dtype if engine.projection else "",
            stop_token_ids=engine.target.stop_ids,
            **self._worker.described(),
        )

    async def Control(
        self,
        request_iterator: AsyncIterator[Read[verify_pb2.ControlDown]],
        context: grpc.aio.ServicerContext,
    ) -> AsyncGenerator[verify_pb2.ControlUp, None]:
        stream = ControlStream(self._worker)
        async with contextlib.aclosing(stream.run(request_iterator)) as events:
            async for event in events:
                yield event


class ControlStream:
    """One control stream of a coordinator. Lives on the event loop."""

    def __init__(self, worker: Worker[EngineCore]) -> None:
        self._worker = worker
        self._outbox: Outbox[verify_pb2.ControlUp] = Outbox(worker.metrics)
        self._driver = RoundDriver(worker, new_owner(), self._say, self._outbox.fail)
        self._backlog = Backlog()
        self._heard_at = time.monotonic()

    async def run(
        self, requests: AsyncIterator[Read[verify_pb2.ControlDown]]
    ) -> AsyncGenerator[verify_pb2.ControlUp, None]:
        """Yields reports until the coordinator ends the stream, breaks the protocol or is silent
        for a lease."""
        lease_s = self._worker.engine.config.lease_s
        self._outbox.put(write_up(self._worker.incarnation, (), int(1e3 * lease_s)))
        reading = asyncio.create_task(self._read(requests))
        watching = asyncio.create_task(self._watch(lease_s))
        parting = asyncio.create_task(self._part())
        try:
            outbox = self._outbox.until(reading, watching, parting)
            async with contextlib.aclosing(outbox) as events:
                async for event in events:
                    yield event
        finally:
            with contextlib.suppress(Unavailable):
                # Unavailable: the process is ending, and its memory with it
                await self._driver.end()
                self._worker.note_load()
            log.info("control.ended")

    def _say(self, news: Sequence[Up]) -> None:
        self._outbox.put(write_up(self._worker.incarnation, news))

    async def _part(self) -> None:
        """Tells the coordinator once the worker drains."""
        await self._worker.draining.wait()
        self._say([Draining(self._worker.draining.left_ms * 1e-3)])
        await asyncio.Event().wait()  # until the stream ends

    async def _read(self, requests: AsyncIterator[Read[verify_pb2.ControlDown]]) -> None:
        async for message, too_large, size in requests:
            self._heard_at = time.monotonic()
            if too_large is not None:
                raise too_large
            if message.incarnation != self._worker.incarnation:
                raise Unavailable(f"incarnation: this is not process {message.incarnation}")
            try:
                told = read_down(message)
            except PeerError as error:
                field, _, problem = str(error).partition(": ")
                raise InvalidRequest(field, problem) from None
            if told:
                self._backlog.read(size)
                self._driver.hear(told, partial(self._backlog.seen, size))

    async def _watch(self, lease_s: float) -> None:
        while (left := self._heard_at + lease_s - time.monotonic()) > 0:  # noqa: ASYNC110 - every message puts the end off
            await asyncio.sleep(left)
        log.warning("control.lease_over", lease_s=lease_s)
        self._worker.metrics.dropped.labels(kind="sequence", reason="lease").inc(
            len(self._driver.rounds)
        )
        raise Unavailable(f"lease: nothing came for {lease_s:g} s")
