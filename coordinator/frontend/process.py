"""A front end process, from configuration to SERVING and back. Loads neither torch nor a lane."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

import structlog

from coordinator.cells.cell import served
from coordinator.frontend.config import FrontendConfig
from coordinator.frontend.remote_cell import RemoteCell
from coordinator.http.front import HttpFront, open_front
from coordinator.reception.input_processor import InputProcessor, prompt_bytes
from coordinator.reception.pacing import read_pace
from coordinator.reception.service import GENERATION, GenerationService
from coordinator.reception.tokenizer import find_tokenizer
from dspark.errors import ConfigError
from dspark.runtime.identity import model_name, new_incarnation
from dspark.runtime.listeners import check_listeners
from dspark.runtime.metrics_server import MetricsServer, serve_metrics
from dspark.runtime.security import Security, split_endpoint, streams_per_connection
from dspark.runtime.server import LEAST_PUBLIC_PING_MS, PUBLIC_LOOKAHEAD, GrpcServer
from dspark.runtime.telemetry import Metrics
from dspark.runtime.wire_limits import MAX_REQUEST
from dspark.wire.v1 import frontend_pb2, generate_pb2_grpc

log = structlog.get_logger("dspark.frontend")

MOST_INTERVAL_MS = 10_000.0
LAST_CALLS_S = 0.2  # who asks again right after the last answer is refused in words, not cut by the server's end
LAST_WRITES_S = 1.0  # for what streams still have to say after their requests were ended


@dataclass
class FrontendProcess:
    """A serving front end."""

    endpoint: str
    incarnation: int
    metrics: Metrics
    metrics_port: int | None
    cell: RemoteCell
    _server: GrpcServer = field(repr=False)
    _metrics_server: MetricsServer | None = field(repr=False)
    _http: HttpFront | None = field(repr=False)

    @property
    def http_url(self) -> str | None:
        """Of the HTTP front, if there is one."""
        return self._http.url if self._http is not None else None

    async def stop(self, grace_s: float = 5.0) -> None:
        """Takes no new requests, lets running streams finish within the grace, then lets everybody go."""
        self.cell.draining = True
        await self._server.set_serving(False)
        await self.cell.emptied(grace_s)
        self.cell.cut_all("the front end stops")
        await asyncio.sleep(min(grace_s, LAST_CALLS_S))
        await self._server.drain(min(grace_s, LAST_WRITES_S))
        if self._http is not None:
            await self._http.stop(min(grace_s, LAST_WRITES_S))
        await self.cell.close()
        if self._metrics_server is not None:
            self._metrics_server.close()
            self._metrics_server = None


async def start(config: FrontendConfig, *, name: str = "frontend/0") -> FrontendProcess:
    """Listens at once; SERVING whenever the coordinator is attached and has somebody to serve with."""
    check(config)
    security = Security.of(config)
    check_listeners(security.listeners("frontend", config, config.http))
    tokenizer = find_tokenizer(config.target, config.target_revision)
    incarnation, clock = new_incarnation(), asyncio.get_running_loop()
    cell: RemoteCell | None = None
    metrics = Metrics(
        cell=config.cell, model_name=lambda: model_name(config.target or served(cell), config.served_model)
    )
    room = config.max_streams + 64
    server = GrpcServer(
        bind=config.bind,
        security=security,
        max_concurrent_streams=room,  # so that excess is refused, not parked
        per_connection=streams_per_connection(config, room),
        max_receive=MAX_REQUEST,
        prompt_bytes=lambda: prompt_bytes(cell) if cell is not None else MAX_REQUEST,
        least_ping_ms=LEAST_PUBLIC_PING_MS,
        lookahead=PUBLIC_LOOKAHEAD,
    )
    hello = frontend_pb2.FrontendHello(name=name, incarnation=incarnation, pid=os.getpid())
    changes: set[asyncio.Task[None]] = set()

    def changed(serving: bool) -> None:
        log.info("frontend.serving" if serving else "frontend.waiting", name=name, coordinator=config.coordinator)
        change = clock.create_task(server.set_serving(serving))
        changes.add(change)
        change.add_done_callback(changes.discard)

    metrics_server = None
    try:
        if config.metrics_port is not None:
            metrics_server = serve_metrics(metrics, security, config.bind, config.metrics_port)
            hello.metrics_port = metrics_server.port
        cell = RemoteCell(
            config.coordinator,
            token=security.token,
            tls=security.tls,
            max_calls=config.max_streams,
            hello=lambda: hello,
            on_change=changed,
            clock=clock,
            metrics=metrics,
        )
        processor = InputProcessor(
            cell, tokenizer, clock, metrics, max_unread=config.max_unread, longest_s=config.request_deadline_s
        )
        generation = GenerationService(
            processor,
            interval_s=config.chunk_interval_ms / 1000,
            unread_s=config.max_unread_s,
            pace=read_pace(config),
        )
        server.add(generate_pb2_grpc.add_GenerationServicer_to_server, generation, GENERATION)
        hello.endpoint = server.endpoint(await server.start())
        http = await open_front(config, processor, most=config.max_streams + 64)
        cell.start()
        await cell.attached(config.attach_wait_s)
    except BaseException:
        if cell is not None:
            await cell.close()
        if metrics_server is not None:
            metrics_server.close()
        await server.drain(0.0)
        raise
    return FrontendProcess(
        endpoint=hello.endpoint,
        incarnation=incarnation,
        metrics=metrics,
        metrics_port=metrics_server.port if metrics_server is not None else None,
        cell=cell,
        _server=server,
        _metrics_server=metrics_server,
        _http=http,
    )


def check(config: FrontendConfig) -> None:
    """Refuses what cannot work, by name, before anything is opened."""
    if not config.coordinator:
        raise ConfigError("frontend.coordinator: give the coordinator's host:port")
    split_endpoint(config.coordinator)
    for key in ("max_streams", "max_unread", "default_max_tokens"):
        if getattr(config, key) < 1:
            raise ConfigError(f"frontend.{key}: {getattr(config, key)} is less than 1")
    if not 0.0 <= config.chunk_interval_ms <= MOST_INTERVAL_MS:
        raise ConfigError(f"frontend.chunk_interval_ms: {config.chunk_interval_ms} is not in 0..{MOST_INTERVAL_MS:g}")
    for key in ("request_deadline_s", "attach_wait_s"):
        if not getattr(config, key) > 0:
            raise ConfigError(f"frontend.{key}: {getattr(config, key)} is not above 0")
