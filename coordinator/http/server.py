"""uvicorn inside a process that has its own event loop, signal handlers and certificates, and a
limited number of file descriptors."""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import structlog
import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from coordinator.http.api import Api
from coordinator.http.connection import HEAD_S, Connection
from coordinator.http.errors import error_response
from coordinator.http.stream import HEAD_ALONE
from dspark.errors import Overloaded
from dspark.runtime.addresses import join_endpoint, listening, split_endpoint

log = structlog.get_logger("dspark.http")

ACCEPTS = 16  # connections taken in one turn of the event loop
SPARE = 64  # file descriptors left to the rest of the process
SAY_EVERY_S = 1.0
_EXHAUSTED = "socket.accept() out of system resource"  # the event loop's message


def room(most: int) -> int:
    """How many connections the free file descriptors allow: at least one, at most `most`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return most
    try:
        free = soft - len(os.listdir("/proc/self/fd"))
    except OSError:
        free = soft // 2
    return max(min(most, max(free - SPARE, free // 2)), 1)


class Exhausted:
    """Error handler of the event loop: counts connections that were refused for want of descriptors
    and logs that once a second; passes other errors on to the previous handler."""

    def __init__(self, loop: asyncio.AbstractEventLoop, refused: Callable[[], None]) -> None:
        self._loop, self._refused = loop, refused
        self._before = loop.get_exception_handler()
        self._quiet_until = 0.0
        loop.set_exception_handler(self._heard)

    def stop(self) -> None:
        """Restores the event loop's previous error handler."""
        if self._loop.get_exception_handler() == self._heard:
            self._loop.set_exception_handler(self._before)

    def _heard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _EXHAUSTED:
            if self._before is not None:
                self._before(loop, context)
            else:
                loop.default_exception_handler(context)
            return
        self._refused()
        if loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + SAY_EVERY_S
            log.warning("http.no_descriptors", error=str(context.get("exception")))


BACKLOG = 2048
# longest time that a connection may be idle between requests, or leave sent bytes unread
IDLE_S = 75.0
CONNECTIONS = 4  # per request that may run: clients keep idle ones open


class ConcurrencyLimit:
    """An ASGI application that runs at most `most` requests; others get 429 and a retry hint."""

    def __init__(self, app: ASGIApp, most: int, refused: Callable[[], None]) -> None:
        self._app, self._most, self._refused = app, most, refused
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._running >= self._most:
            self._refused()
            why = Overloaded(
                f"{self._running} requests are running, at most {self._most} may", retry_after_s=1.0
            )
            return await error_response(scope, why)(scope, receive, send)
        self._running += 1
        if scope.get("method") == "HEAD":
            # answered like GET; the server leaves out the body, and a stream has none
            scope = {**scope, "method": "GET", HEAD_ALONE: True}
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


class HttpServer:
    """An HTTP listener, bound at construction, that serves from `start` to `stop`. most: requests
    at one time; more are refused."""

    def __init__(self, app: ASGIApp, api: Api, most: int) -> None:
        metrics, bind, origins = api.processor.metrics, api.config.http, api.config.cors_origin
        assert bind is not None

        def ended(why: str) -> None:
            metrics.dropped.labels(kind="connection", reason=why).inc()

        refused = metrics.admission_rejections.labels(reason="http_requests").inc
        self._socket = _listen(bind)
        at = join_endpoint(split_endpoint(bind)[0], self._socket.getsockname()[1])
        self.url = f"{'https' if api.security.tls else 'http'}://{at}"
        made = functools.partial(Connection, quiet={}, most=room(CONNECTIONS * most), ended=ended)
        bounded: ASGIApp = ConcurrencyLimit(app, most, refused)
        config = uvicorn.Config(
            _readable(bounded, origins) if origins else bounded,
            log_config=None,  # the process has its own logging
            log_level="error",  # what clients do wrong is counted
            access_log=False,
            lifespan="off",
            ws="none",
            http=cast(Any, made),
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(IDLE_S),
        )
        config.load()
        config.ssl = api.security.server_context()
        # Started and ended step by step: `serve` would replace the process's signal handlers.
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        self._ended = ended

    async def start(self) -> None:
        """Starts to serve; returns when the socket listens."""
        loop, server, config = asyncio.get_running_loop(), self._server, self._server.config
        connect = functools.partial(
            cast(Any, config.http_protocol_class),
            config=config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
        )
        # Here, as uvicorn would leave a silent peer a minute for its handshake.
        listening = await loop.create_server(
            connect,
            sock=self._socket,
            ssl=config.ssl,
            backlog=ACCEPTS,
            ssl_handshake_timeout=HEAD_S if config.ssl else None,
        )
        server.servers = [listening]
        self._socket.listen(BACKLOG)  # asyncio listened with ACCEPTS, its accepts per turn
        self._exhausted = Exhausted(loop, functools.partial(self._ended, "no_descriptors"))
        self._ticking = asyncio.create_task(server.main_loop())

    async def stop(self, grace_s: float) -> None:
        """Stops accepting connections; running answers get `grace_s` seconds."""
        self._ticking.cancel()
        self._server.config.timeout_graceful_shutdown = max(1, round(grace_s))
        await self._server.shutdown([self._socket])
        self._exhausted.stop()


def _readable(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Pages of these origins may read every answer of the application, its refusals included."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["x-request-id", "request-id", "retry-after", "retry-after-ms"],
    )


def _listen(bind: str) -> socket.socket:
    host, port = split_endpoint(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with listening("http", host, port):
        found = socket.create_server((host, port), family=family, dualstack_ipv6=":" in host)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Linux: also ends closed connections whose peer does not read what was sent
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * IDLE_S))
    return found
