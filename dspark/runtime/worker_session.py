"""One coordinator's stream to a worker: commands in, events out, and everything it opened freed when it ends."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import Any, ClassVar, Generic

import structlog

from dspark.errors import InvalidRequest, Unavailable
from dspark.runtime.leases import Leases, Ref
from dspark.runtime.session import CommandStream
from dspark.runtime.wire_limits import Read
from dspark.runtime.worker import E, Worker, new_owner
from dspark.wire.v1 import types_pb2

log = structlog.get_logger("dspark.session")


class WorkerSession(ABC, Generic[E]):
    """Commands of one stream. A command is answered by an event of its tag; `event` is the class of all events."""

    event: ClassVar[type[Any]]

    def __init__(self, worker: Worker[E]) -> None:
        self._worker = worker
        self._engine, self._device, self._metrics = worker.engine, worker.device, worker.metrics
        self._owner = new_owner()
        self._leases = Leases(worker.engine.config.lease_s)

    @abstractmethod
    async def _carry_out(self, kind: str, command: Any, too_large: InvalidRequest | None, wrong: bool) -> Any:
        """The event of one command. wrong: it is for another process."""

    async def run(self, requests: AsyncIterator[Read[Any]]) -> AsyncGenerator[Any, None]:
        """Events until the coordinator ends the stream."""
        stream: CommandStream[Read[Any], Any] = CommandStream(self._answer, self._metrics)
        watching = asyncio.create_task(self._leases.watch(self._free_overdue))
        try:
            with self._worker.draining.telling(lambda: stream.say(self._farewell())):
                async with contextlib.aclosing(stream.run(requests)) as events:
                    async for event in events:
                        yield event
        finally:
            watching.cancel()
            await self._free()

    async def _answer(self, read: Read[Any]) -> Any:
        command = read.message
        kind = command.WhichOneof("command")
        if kind is None:
            reason = "empty" if read.too_large is None else "too_large"
            self._metrics.dropped.labels(kind="command", reason=reason).inc()
            return None
        wrong = command.incarnation not in (0, self._worker.incarnation)
        event = await self._carry_out(kind, command, read.too_large, wrong)
        event.tag = command.tag
        event.incarnation = self._worker.incarnation
        return event

    def _farewell(self) -> Any:
        left = types_pb2.Draining(finish_within_ms=self._worker.draining.left_ms)
        return self.event(incarnation=self._worker.incarnation, draining=left)

    async def _free_named(self, named: Iterable[Ref]) -> int:
        """Ends these sequences and their leases; how many were held."""
        refs = list(named)
        freed = await self._release_all(refs)
        for sequence, epoch in refs:
            self._leases.end(sequence, epoch)
        self._worker.note_load()
        return freed

    async def _free_overdue(self, late: list[Ref]) -> None:
        """A release got lost, or the coordinator has forgotten these sequences."""
        freed = await self._release_all(late)
        self._metrics.dropped.labels(kind="sequence", reason="lease").inc(freed)
        self._worker.note_load()
        log.warning("lease.over", role=self._worker.role, sequences=freed)

    async def _release_all(self, refs: list[Ref]) -> int:
        engine = self._engine
        return await self._device.run_surely(lambda: sum(engine.release(sequence, epoch) for sequence, epoch in refs))

    async def _free(self) -> None:
        try:
            freed = await self._device.run_surely(self._engine.release_owner, self._owner)
        except Unavailable:  # the process is ending, and its memory with it
            return
        self._worker.note_load()
        log.info("session.ended", role=self._worker.role, sequences=freed)
