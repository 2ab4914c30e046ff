"""One HTTP connection, and what the library's own leaves open: how long it may be quiet, its end, and who is there.

The library counts quiet connections as work, waits for a first request for ever, and can only close a connection whose
buffers the peer empties. Here a head comes within `HEAD_S`, a connection can be cut by what answers on it, and the one
that has been quiet longest makes room for a new one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

FIRST_S, NEXT_S = 0.5, 0.1  # until an answer that takes longer is found to have a reader, and between looks
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed:
    """One such connection, looked after until `stop`.

    interim: whether an interim response may be sent now. gone: called once when nobody is there.
    """

    def __init__(self, transport: asyncio.Transport, interim: Callable[[], bool], gone: Callable[[], None]) -> None:
        self._transport, self._interim, self._gone = transport, interim, gone
        self._loop, self._asked = asyncio.get_running_loop(), False
        self._timer = self._loop.call_later(FIRST_S, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._transport.is_closing():
            return
        if not _is_open(self._transport.get_extra_info("socket")):
            self._gone()
            return
        if not self._asked and self._interim():
            self._transport.write(INTERIM)
        self._asked = True
        self._timer = self._loop.call_later(NEXT_S, self._look)


def _is_open(connection: Any) -> bool:
    """Whether the other side has not refused what it was sent."""
    try:
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            return False
        if hasattr(socket, "TCP_INFO"):  # its first byte is the state
            return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _CLOSED)
    except OSError:
        return False
    return True


_CLOSED = 7  # TCP_CLOSE


AHEAD = 8  # requests of one connection that wait behind one that is being answered
HEAD_S = 10.0  # from a connection's beginning, or a request's first byte, to the end of its head
_CUT, _NAMES = "dspark.cut", "dspark.names"  # in a request's state


class Quiet:
    """Connections of one listener on which no request runs, the longest quiet first.

    most: connections of all kinds. ended: is told why one was ended that its peer had not closed.
    """

    def __init__(self, most: int, ended: Callable[[str], None]) -> None:
        self._most, self.ended = most, ended
        self._all: dict[Connection, None] = {}

    def add(self, connection: Connection, there: int) -> None:
        """There are `there` connections, this one included; if those are too many, the longest quiet one ends."""
        self._all[connection] = None
        if there > self._most:
            longest = next(iter(self._all))
            self.remove(longest)
            longest.end("room")

    def remove(self, connection: Connection) -> None:
        """A request runs on it, or it has ended."""
        self._all.pop(connection, None)


class Connection(HttpToolsProtocol):
    """The library's, with an end to its patience."""

    def __init__(self, *arguments: Any, quiet: Quiet, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._quiet = quiet
        self._head: asyncio.TimerHandle | None = None
        self._half_closed: HalfClosed | None = None
        self._running: Any = None  # the request that is being answered; `cycle` is the last that came

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert") or {}
        names = tuple(str(name) for _, name in certificate.get("subjectAltName", ()))
        self.app_state = {**self.app_state, _CUT: transport.abort, _NAMES: names}
        self._quiet.add(self, len(self.connections))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._head is None and self._idle:  # the library forgets its own timer with any byte
            self._await_head()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._head_came()
        self._quiet.remove(self)
        super().on_headers_complete()
        if len(self.pipeline) <= AHEAD:  # the library stops reading, and would not notice that the client leaves
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends nothing more. It still gets the answer to a request that is whole."""
        if self._idle or self.cycle.more_body or self.transport.get_extra_info("ssl_object") is not None:
            return None  # which closes the connection
        self._half_closed = HalfClosed(self.transport, self._may_interim, self.transport.abort)
        return True

    def _may_interim(self) -> bool:
        running = self._running
        return running.scope["http_version"] == "1.1" and not running.response_started

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed is not None and self._idle and not self.transport.is_closing():
            self.transport.close()
        if self._idle and not self.transport.is_closing():
            self._quiet.add(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        if self._half_closed is not None:
            self._half_closed.stop()
        self._quiet.remove(self)
        self.cycle = self._running  # which the library tells of it
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Nobody sends, and perhaps nobody reads what was sent: closing would wait for that."""
        self.end("idle")

    def end(self, why: str) -> None:
        """At once, whatever waits to be sent."""
        if not self.transport.is_closing():
            self._quiet.ended(why)
            self.transport.abort()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.end, "head")

    def _head_came(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def names_of(scope: Scope) -> Iterable[str]:
    """Alternative names of the caller's certificate, which TLS has verified."""
    names: Iterable[str] = scope.get("state", {}).get(_NAMES, ())
    return names


def cut(scope: Scope) -> bool:
    """Ends a request's connection at once, whatever waits to be sent. False where there is none to end."""
    end = scope.get("state", {}).get(_CUT)
    if end is not None:
        end()
    return end is not None
