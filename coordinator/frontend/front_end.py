"""The front end of a cell in this process or in another: the gRPC service, and HTTP if configured.

The HTTP libraries are loaded only if HTTP is configured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, TypeVar

from coordinator.cells.cell import CellPort, served
from coordinator.config import ClientsConfig, http_missing
from coordinator.reception.input_processor import InputProcessor, prompt_bytes
from coordinator.reception.pacing import read_pace
from coordinator.reception.service import GENERATION, GenerationService
from coordinator.reception.tokenizer import Tokenizer
from dspark.errors import ConfigError
from dspark.runtime.security import streams_per_connection
from dspark.runtime.server import LEAST_PUBLIC_PING_MS, PUBLIC_LOOKAHEAD, ServerLimits
from dspark.runtime.shell import Servicer, ShellProcess
from dspark.runtime.wire_limits import MAX_REQUEST
from dspark.wire.v1 import generate_pb2_grpc

if TYPE_CHECKING:
    from fastapi import APIRouter

    from coordinator.http.api import Api
    from coordinator.http.server import HttpServer

C = TypeVar("C", bound=CellPort)

# calls right after the last answer get an error in this time, not a broken connection
LAST_CALLS_S = 0.2
LAST_WRITES_S = 1.0  # for the last messages of streams whose requests were ended


class ClientsProcess(ShellProcess, Generic[C]):
    """A process that serves a cell over gRPC, and HTTP if configured; the cell is here or in
    another process, and is set before it listens. most: requests at one time, those being refused
    included. interval_s: least time between two chunks of one client."""

    last_s = LAST_WRITES_S
    cell: C

    def __init__(
        self, role: str, config: ClientsConfig, *, most: int, interval_s: float = 0.0
    ) -> None:
        super().__init__(role, config, lambda: config.target or served(self.cell))
        self._config: ClientsConfig = config
        self._most, self._interval_s = most, interval_s
        self._http: HttpServer | None = None

    async def listen(self, tokenizer: Tokenizer | None, *more: Servicer) -> None:
        """Opens gRPC for clients, and `/metrics`. more: servicers beside the clients' one."""
        config = self._config
        self._processor = InputProcessor(
            self.cell,
            tokenizer,
            asyncio.get_running_loop(),
            self.metrics,
            max_unread=config.max_unread,
            longest_s=config.request_deadline_s,
        )
        generation = GenerationService(
            self._processor,
            interval_s=self._interval_s,
            unread_s=config.max_unread_s,
            pace=read_pace(config),
        )
        servicer = Servicer(
            generate_pb2_grpc.add_GenerationServicer_to_server, generation, GENERATION
        )
        limits = ServerLimits(
            max_concurrent_streams=self._most,  # so that excess is refused, not left waiting
            per_connection=streams_per_connection(config, self._most),
            max_receive=MAX_REQUEST,
            least_ping_ms=LEAST_PUBLIC_PING_MS,
            lookahead=PUBLIC_LOOKAHEAD,
        )
        await self.open(
            [servicer, *more], limits=limits, prompt_bytes=lambda: prompt_bytes(self.cell)
        )

    async def open_http(self, more: Callable[[Api], Iterable[APIRouter]] = lambda _: ()) -> None:
        """Starts the HTTP listener if `http` is configured. more: routers beside the usual ones.
        Raises ConfigError if the HTTP libraries are missing."""
        if self._config.http is None:
            return
        if missing := http_missing():
            raise ConfigError(
                f"http: needs {', '.join(missing)}; they come with the extra `http`: pip install "
                "'.[http]' in the checkout"
            )
        from coordinator.dialects import messages, responses
        from coordinator.http import chat, completions, system
        from coordinator.http.api import build_app, make_api
        from coordinator.http.server import HttpServer

        api = make_api(self._config, self._processor)
        ours = (system.routes, chat.routes, completions.routes, system.tokenizing_routes)
        routers = [routes(api) for routes in (*ours, messages.routes, responses.routes)]
        http = HttpServer(build_app(api, [*routers, *more(api)]), api, self._most)
        await http.start()
        self._http, self.http_url = http, http.url

    def _leave(self, grace_s: float) -> None:
        self.cell.draining = True

    async def _empty(self, grace_s: float) -> None:
        await self.cell.emptied(grace_s)
        self.cell.cut_all()
        await asyncio.sleep(min(grace_s, LAST_CALLS_S))

    async def _close(self, grace_s: float) -> None:
        if self._http is not None:
            await self._http.stop(min(grace_s, LAST_WRITES_S))
        await self.cell.close()
