"""A process's life: start, serve until a signal, drain, stop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

log = structlog.get_logger("dspark.process")


class Process(Protocol):
    """What a room's `start` returns."""

    @property
    def endpoint(self) -> str:
        """host:port of its gRPC server."""

    @property
    def incarnation(self) -> int:
        """Number of this process start."""

    async def stop(self, grace_s: float) -> None:
        """Drains within `grace_s` seconds, then frees everything."""


async def run_until_signal(
    start: Callable[[], Awaitable[Process]],
    *,
    grace_s: float = 10.0,
    ready: Callable[[Process], None] | None = None,
) -> None:
    """Starts a process and keeps it until SIGTERM or SIGINT; a second signal cuts the grace to nothing."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    hurried = asyncio.Event()

    def on_signal() -> None:
        (hurried if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    starting = asyncio.ensure_future(start())
    asking = asyncio.ensure_future(asked.wait())
    await asyncio.wait({starting, asking}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # told to go while still loading
        starting.cancel()
        log.info("process.stopped", before="serving")
        return
    asking.cancel()
    process = starting.result()
    log.info("process.serving", endpoint=process.endpoint, incarnation=process.incarnation)
    if ready is not None:
        ready(process)
    await asked.wait()
    log.info("process.draining", grace_s=grace_s)
    stopping = asyncio.create_task(process.stop(grace_s))
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        stopping.cancel()
        await process.stop(0.0)
    hurry.cancel()
    log.info("process.stopped")
