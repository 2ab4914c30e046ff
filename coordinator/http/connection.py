"""HTTP connections with what uvicorn's lack: idle limits, a hard end, and the peer's names.

uvicorn counts idle connections as work, waits forever for a first request, and can only close a
connection whose peer reads. Here a request's head must arrive within `HEAD_S`, a request can cut
its connection, and the longest idle connection ends to make room for a new one. Neither a head nor
what stands around the parts of a body may grow without an end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

AHEAD = 8  # pipelined requests that may wait behind the one being answered
HEAD_S = 10.0  # from a connection's beginning, or a request's first byte, to the end of its head
HEAD_BYTES = 64 * 1024  # that may come with no part of a body, and without ending a head
_CUT, _NAMES = "dspark.cut", "dspark.names"  # keys in a request's state


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with a timeout for a request's head, and aborted when idle too long.

    quiet: the idle connections of the listener, the longest idle first. most: limit of all its
    connections. ended: called with the reason when one is ended here.
    """

    def __init__(
        self,
        *arguments: Any,
        quiet: dict[Connection, None],
        most: int,
        ended: Callable[[str], None],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._quiet, self._most, self._ended = quiet, most, ended
        self._head: asyncio.TimerHandle | None = None
        # the request that is being answered; `cycle` is the last one received
        self._running: Any = None
        self._data = self._again = b""  # being read, to be read next
        self._around = 0  # bytes since the last head, or part of a body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert") or {}
        names = tuple(str(name) for _, name in certificate.get("subjectAltName", ()))
        self.app_state = {**self.app_state, _CUT: transport.abort, _NAMES: names}
        self._rest()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head is None and self._idle:  # uvicorn drops its own timer at any byte
            self._await_head()
        self._around += len(data)
        self._again = data
        while self._again:
            self._data, self._again = self._again, b""
            super().data_received(self._data)
        if self._around > HEAD_BYTES:  # the parser keeps heads and trailers of any size
            self.end("head_bytes")

    def send_400_response(self, msg: str) -> None:
        self._ended("malformed")
        super().send_400_response(msg)

    @property
    def _offers(self) -> bool:
        """Whether the request offers to go on in another protocol, which nobody here speaks."""
        return self.parser.should_upgrade() and b"upgrade" in dict(self.headers)

    def _unsupported_upgrade_warning(self) -> None:
        """Reads a request again without its offer: the parser takes what follows the head of one,
        its body too, for the other protocol's. Java's clients offer h2c with their first request.
        """
        if not self._offers:
            return  # CONNECT
        (behind,) = cast(Any, sys.exception()).args
        line = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        kept = [b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade"]
        head = b"%b %b HTTP/%b\r\n" % line + b"".join(kept) + b"\r\n"
        self._again = head + self._data[behind:]

    def on_message_complete(self) -> None:
        if not self._offers:
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._around = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        self._around = 0
        if self._offers:
            return
        self._head_came()
        self._quiet.pop(self, None)
        super().on_headers_complete()
        if len(self.pipeline) <= AHEAD:
            # uvicorn stops reading here, and would not notice that the client disconnects
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._idle and not self.transport.is_closing():
            self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        self._quiet.pop(self, None)
        self.cycle = self._running  # which uvicorn notifies
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Aborts an idle connection; a close would wait until the peer reads what was sent."""
        self.end("idle")

    def end(self, why: str) -> None:
        """Aborts the connection and drops unsent bytes. why: the reason reported to `ended`."""
        self._quiet.pop(self, None)
        if not self.transport.is_closing():
            self._ended(why)
            self.transport.abort()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _rest(self) -> None:
        """Becomes idle. If the listener has too many connections, the longest idle one ends."""
        self._quiet[self] = None
        if len(self.connections) > self._most:
            next(iter(self._quiet)).end("room")

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.end, "head")

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def names_of(scope: Scope) -> Iterable[str]:
    """The subject alternative names of the caller's certificate, which TLS has verified."""
    names: Iterable[str] = scope.get("state", {}).get(_NAMES, ())
    return names


def cut(scope: Scope) -> bool:
    """Aborts a request's connection and drops unsent bytes; returns False if it has none to
    abort."""
    end = scope.get("state", {}).get(_CUT)
    if end is not None:
        end()
    return end is not None
