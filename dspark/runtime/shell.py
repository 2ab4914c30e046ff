"""What all serving processes share: identity, metrics, listeners, and an orderly stop.

A process checks its addresses, loads, listens, and reports that it serves. Every role stops in the
same steps: it takes no new work, health reports so, present work may finish within the grace,
streams send their last messages, then everything closes. Each role implements its own part of these
steps.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import structlog

from dspark.runtime.identity import model_name, new_incarnation
from dspark.runtime.listen_config import ListenConfig
from dspark.runtime.metrics_server import MetricsServer
from dspark.runtime.security import Security
from dspark.runtime.server import GrpcServer
from dspark.runtime.telemetry import Metrics

log = structlog.get_logger("dspark.process")

LEFT_S = 1.0  # longest wait for tasks that are left when a process has stopped


class Servicer(NamedTuple):
    """A service, as the arguments of `GrpcServer.add`."""

    register: Callable[[Any, Any], None]
    servicer: object
    name: str
    readers: Mapping[str, Callable[[bytes], Any]] = {}


class ShellProcess(ABC):
    """A serving process of any role. role: section of the configuration. model: returns the served
    model, if known. Raises ConfigError for an address that is not free, or open to strangers."""

    last_s: ClassVar[float]  # for the last messages of streams, after all work has ended
    http_url: str | None = None  # of its HTTP front, if it has one

    def __init__(self, role: str, config: ListenConfig, model: Callable[[], str | None]) -> None:
        self._config, self._model = config, ""
        self.security = Security.of(config)
        self.security.check_addresses(role, config)

        def known() -> str:
            # one that was known once stays, so that no time series breaks off
            self._model = model() or self._model
            return model_name(self._model, config.served_model)

        self.metrics = Metrics(cell=config.cell, model_name=known)
        self.incarnation = new_incarnation()  # number of this process start
        self.endpoint = ""  # host:port of its gRPC server; this and the next once it listens
        self.metrics_port = 0
        self._server: GrpcServer | None = None
        self._metrics_server: MetricsServer | None = None

    @property
    def server(self) -> GrpcServer:
        assert self._server is not None, "it does not listen yet"
        return self._server

    async def open(self, servicers: Iterable[Servicer], **options: Any) -> None:
        """Opens gRPC and `/metrics`, not yet SERVING. options: of `GrpcServer`."""
        config = self._config
        server = GrpcServer(
            bind=config.bind, security=self.security, denied=self.metrics.denied, **options
        )
        for each in servicers:
            server.add(*each)
        self.endpoint = await server.start()
        self._server = server
        if config.metrics_port is not None:
            self._metrics_server = MetricsServer(
                self.metrics, self.security, config.bind, config.metrics_port
            )
            self.metrics_port = self._metrics_server.server_port

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new work, lets present work finish within the grace, frees everything. May be
        called again with a shorter grace while it runs."""
        self._leave(grace_s)
        await self.server.set_serving(False)
        await self._empty(grace_s)
        await self.server.drain(min(grace_s, self.last_s))
        await self._close(grace_s)
        self._close_metrics()

    async def abandon(self) -> None:
        """Closes, at once, what was opened by a process that cannot start."""
        await self._close(0.0)
        if self._server is not None:
            await self._server.drain(0.0)
        self._close_metrics()

    def _close_metrics(self) -> None:
        if self._metrics_server is not None:  # after the last message of the process
            self._metrics_server.close()

    @abstractmethod
    def _leave(self, grace_s: float) -> None:
        """Takes no new work from now on."""

    @abstractmethod
    async def _empty(self, grace_s: float) -> None:
        """Waits until no work is left, for `grace_s` at most."""

    @abstractmethod
    async def _close(self, grace_s: float) -> None:
        """Closes the rest of the role's own part, after the last call."""


async def run_until_signal(
    start: Callable[[], Awaitable[ShellProcess]],
    *,
    grace_s: float,
    ready: Callable[[ShellProcess], None],
) -> None:
    """Starts a process and keeps it until SIGTERM, SIGINT or the end of its terminal; a second one
    of the former cuts the grace to nothing."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    hurried = asyncio.Event()

    def on_signal() -> None:
        (hurried if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        # shell and kernel both send it: neither hurries the other
        loop.add_signal_handler(signal.SIGHUP, asked.set)
    starting = asyncio.ensure_future(start())
    asking = asyncio.ensure_future(asked.wait())
    await asyncio.wait({starting, asking}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # stopped while still loading
        starting.cancel()
        # it closes what it has opened; a second cancel, as of the loop's end, would break that off
        await asyncio.wait({starting}, timeout=grace_s)
        log.info("process.stopped", before="serving")
        return
    asking.cancel()
    process = starting.result()
    log.info("process.serving", endpoint=process.endpoint, incarnation=process.incarnation)
    ready(process)
    await asked.wait()
    log.info("process.draining", grace_s=grace_s)
    stopping = asyncio.create_task(process.stop(grace_s))
    hurry = asyncio.create_task(hurried.wait())
    await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        await stopping  # raises what went wrong
    else:
        stopping.cancel()
        await process.stop(0.0)
    hurry.cancel()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:  # calls that have just ended; cut off here, gRPC would log them as failed
        await asyncio.wait(left, timeout=LEFT_S)
    log.info("process.stopped")
