"""A coordinator's control stream: plans in, reports out, and everything that came through it freed when it ends.

A message that does not fit breaks the protocol, and the stream ends with the field's name. The stream is the lease of
all its sequences: it ends, too, when the coordinator has said nothing for too long, who may hang with its connection
alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

import structlog

from dspark.errors import InvalidRequest, PeerError, Unavailable
from dspark.rounds.control import Draining, Up
from dspark.runtime.backlog import Backlog
from dspark.runtime.outbox import Outbox
from dspark.runtime.wire_limits import Read
from dspark.runtime.worker import Worker, new_owner
from dspark.wire.control_down import read_down
from dspark.wire.control_up import write_up
from dspark.wire.v1 import verify_pb2
from verify_service.engine_core import EngineCore
from verify_service.feature_push import FeaturePush
from verify_service.round_driver import RoundDriver

log = structlog.get_logger("dspark.rounds")


class ControlStream:
    """One stream. Lives on the event loop."""

    def __init__(self, worker: Worker[EngineCore], push: FeaturePush) -> None:
        self._worker = worker
        self._outbox: Outbox[verify_pb2.ControlUp] = Outbox(worker.metrics)
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._driver = RoundDriver(worker, push, new_owner(), self._say, self._fail)
        self._backlog = Backlog()
        self._heard_at = time.monotonic()

    async def run(
        self, requests: AsyncIterator[Read[verify_pb2.ControlDown]]
    ) -> AsyncGenerator[verify_pb2.ControlUp, None]:
        """News until the coordinator ends the stream, breaks the protocol or falls silent."""
        lease_s = self._worker.engine.config.lease_s
        self._outbox.put(write_up(self._worker.incarnation, (), int(1e3 * lease_s)))
        reading = asyncio.create_task(self._read(requests))
        watching = asyncio.create_task(self._watch(lease_s))
        try:
            with self._worker.draining.telling(self._say_draining):
                async with contextlib.aclosing(self._outbox.until(reading, watching, self._failure)) as events:
                    async for event in events:
                        yield event
        finally:
            with contextlib.suppress(Unavailable):  # else the process is ending, and its memory with it
                await self._driver.end()
                self._worker.note_load()
            log.info("control.ended")

    def _say(self, news: Sequence[Up]) -> None:
        self._outbox.put(write_up(self._worker.incarnation, news))

    def _fail(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _say_draining(self) -> None:
        self._say([Draining(self._worker.draining.left_ms * 1e-3)])

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
        self._worker.metrics.dropped.labels(kind="sequence", reason="lease").inc(len(self._driver.rounds))
        raise Unavailable(f"lease: nothing came for {lease_s:g} s")
