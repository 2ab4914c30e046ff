"""A stream of rounds on the port that everything else is on: for verifiers that cannot reach the rounds' own port."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from draft_service.rounds import Rounds
from dspark.runtime.outbox import Outbox
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import Read
from dspark.wire.v1 import draft_pb2

Say = Callable[[draft_pb2.RoundsEvent], None]
OpenRounds = Callable[[Say, Callable[[Exception], None]], Rounds]


async def carried(
    open_rounds: OpenRounds, requests: AsyncIterator[Read[draft_pb2.RoundsCommand]], metrics: Metrics
) -> AsyncGenerator[draft_pb2.RoundsEvent, None]:
    """Events until the verifier ends the stream, or breaks the protocol."""
    loop = asyncio.get_running_loop()
    outbox: Outbox[draft_pb2.RoundsEvent] = Outbox(metrics)
    failure: asyncio.Future[None] = loop.create_future()

    def fail(error: Exception) -> None:
        if not failure.done():
            failure.set_exception(error)

    rounds = open_rounds(
        lambda event: _soon(loop, lambda: outbox.put(event)), lambda error: _soon(loop, lambda: fail(error))
    )
    reading, watching = asyncio.create_task(_read(requests, rounds)), asyncio.create_task(_watch(rounds))
    try:
        async with contextlib.aclosing(outbox.until(reading, watching, failure)) as events:
            async for event in events:
                yield event
    finally:
        rounds.close()


def _soon(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed, and nobody waits any more
        loop.call_soon_threadsafe(what)


async def _read(requests: AsyncIterator[Read[draft_pb2.RoundsCommand]], rounds: Rounds) -> None:
    async for command in requests:
        rounds.hear(command)


async def _watch(rounds: Rounds) -> None:
    while True:  # noqa: ASYNC110 - every message puts the end off
        await asyncio.sleep(rounds.left_s())
