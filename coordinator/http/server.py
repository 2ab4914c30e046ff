"""uvicorn inside a process that has an event loop and signals of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from coordinator.http.renewing import Renewing
from dspark.errors import ConfigError
from dspark.runtime.security import Security, split_endpoint

BACKLOG = 2048
START_S = 10.0
IDLE_S = 75.0  # a connection may stay open between two requests


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process has handlers of its own."""
        yield


class HttpServer:
    """Listens from the start on, serves until stopped. most: connections at one time; more hear 503."""

    def __init__(self, app: ASGIApp, bind: str, *, most: int, security: Security) -> None:
        tls = security.tls
        self._socket = _listen(bind)
        host, port = split_endpoint(bind)[0], self._socket.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://" + (f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        config = uvicorn.Config(
            app,
            log_config=None,  # records take the process's own path
            access_log=False,
            lifespan="off",
            ws="none",
            http="httptools",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=most,
            backlog=BACKLOG,
            timeout_keep_alive=int(IDLE_S),
            **security.uvicorn(),
        )
        config.load()
        if tls is not None and config.ssl is not None:
            config.ssl.sni_callback = Renewing(tls, ask_peers=security.ask_peers)
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when it listens."""
        self._task = asyncio.create_task(self._server.serve([self._socket]))
        listens = asyncio.create_task(self._server.listens.wait())
        await asyncio.wait({self._task, listens}, timeout=START_S, return_when=asyncio.FIRST_COMPLETED)
        listens.cancel()
        if self._task.done():
            await self._task

    async def stop(self, grace_s: float) -> None:
        """Takes no new connections; running answers get `grace_s` seconds."""
        if self._task is None:
            self._socket.close()
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        self._server.should_exit = True
        await self._task


def _listen(bind: str) -> socket.socket:
    host, port = split_endpoint(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise ConfigError(f"http: cannot listen on {bind}: {error}") from error
    found.setblocking(False)
    return found
