"""The Draft servicer: describes the drafter, announces draining, runs rounds with verifiers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc

from draft_service.drafting import Drafting
from draft_service.engine_core import DraftEngineCore
from draft_service.rounds import Rounds
from dspark.errors import Unavailable
from dspark.runtime.outbox import Outbox
from dspark.runtime.wire_limits import Read
from dspark.runtime.worker import Worker
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc, types_pb2

NAME = "dspark.wire.v1.Draft"

Say = Callable[[draft_pb2.RoundsEvent], None]
OpenRounds = Callable[[Say, Callable[[Exception], None]], Rounds]


class DraftService(draft_pb2_grpc.DraftServicer):
    """Answers Describe, Watch and Rounds. rounds_port: 0 where rounds have no port of their own."""

    def __init__(
        self,
        worker: Worker[DraftEngineCore],
        drafting: Drafting,
        open_rounds: OpenRounds,
        rounds_port: int,
    ) -> None:
        self._worker, self._drafting = worker, drafting
        self._open_rounds, self._rounds_port = open_rounds, rounds_port

    async def Describe(
        self, request: types_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> draft_pb2.DrafterDescription:
        engine, drafting = self._worker.engine, self._drafting
        shape = engine.shape
        return draft_pb2.DrafterDescription(
            model=engine.config.drafter,
            projection=engine.projection,
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            block_size=shape.block_size,
            q_entries=engine.q_entries,
            context_length=engine.context_length,
            rounds_port=self._rounds_port,
            calibrated=engine.calibrated,
            **self._worker.described(wait_s=drafting.wait_s, waits=drafting.waits),
        )

    async def Watch(
        self, request: draft_pb2.WatchRequest, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[types_pb2.Draining, None]:
        draining = self._worker.draining
        if request.incarnation != self._worker.incarnation:
            raise Unavailable(f"incarnation: this is not process {request.incarnation}")
        await draining.wait()
        yield types_pb2.Draining(finish_within_ms=draining.left_ms)
        await asyncio.Event().wait()  # until the process ends

    async def Rounds(
        self,
        request_iterator: AsyncIterator[Read[draft_pb2.RoundsCommand]],
        context: grpc.aio.ServicerContext,
    ) -> AsyncGenerator[draft_pb2.RoundsEvent, None]:
        """Serves rounds on the main port, for verifiers that cannot reach the rounds port."""
        loop = asyncio.get_running_loop()
        outbox: Outbox[draft_pb2.RoundsEvent] = Outbox(self._worker.metrics)

        def soon(what: Callable[[Any], None], said: object) -> None:
            with contextlib.suppress(RuntimeError):
                # the loop has closed, and the stream with it
                loop.call_soon_threadsafe(what, said)

        rounds = self._open_rounds(partial(soon, outbox.put), partial(soon, outbox.fail))
        reading, watching = (
            asyncio.create_task(_read(request_iterator, rounds)),
            asyncio.create_task(_watch(rounds)),
        )
        try:
            async with contextlib.aclosing(outbox.until(reading, watching)) as events:
                async for event in events:
                    yield event
        finally:
            rounds.close()


async def _read(requests: AsyncIterator[Read[draft_pb2.RoundsCommand]], rounds: Rounds) -> None:
    async for command in requests:
        rounds.hear(command)


async def _watch(rounds: Rounds) -> None:
    while True:  # noqa: ASYNC110 - every message puts the end off
        await asyncio.sleep(rounds.left_s())
