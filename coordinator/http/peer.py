"""Whether who has sent its last byte still listens: a client may close its half of a connection and await the answer.

One that has gone looks the same until it is sent something, which its system then refuses. So an interim response goes
out, which clients skip, and the connection's state tells.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

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
