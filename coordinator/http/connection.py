"""One HTTP connection, and what the library's own leaves open: how long it may be quiet, its end,
and who is there.

The library counts quiet connections as work, waits for a first request for ever, and can only close
a connection whose buffers the peer empties. Here a head comes within `HEAD_S`, a connection can be
cut by what answers on it, and the one that has been quiet longest makes room for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

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
        """There are `there` connections, this one included; if those are too many, the longest
        quiet one ends."""
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
        # the request that is being answered; `cycle` is the last that came
        self._running: Any = None

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
        if len(self.pipeline) <= AHEAD:
            # the library stops reading, and would not notice that the client leaves
            self.flow.resume_reading()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._idle and not self.transport.is_closing():
            self._quiet.add(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
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
    """Ends a request's connection at once, whatever waits to be sent. False where there is none to
    end."""
    end = scope.get("state", {}).get(_CUT)
    if end is not None:
        end()
    return end is not None
