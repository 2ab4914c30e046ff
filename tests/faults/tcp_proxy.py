"""A TCP proxy before one process: the connection that hangs, stalls one way, or is cut.

`blackhole` keeps every connection open and passes nothing, as a process under SIGSTOP or a route
that died does.
"""

import asyncio
import contextlib
import enum
import functools
from collections.abc import Callable

from anyio.from_thread import start_blocking_portal

from tests.waiting import until

CHUNK = 1 << 16
BESIDE = "127.0.0.2"  # loopback, and not where processes listen


class Way(enum.Enum):
    IN = "in"  # to the process
    OUT = "out"  # from it


class TcpProxy:
    """Before the process at `upstream`; `endpoint` is where others find it. Runs on a thread of its
    own.

    It stands at an address of its own, so that it can stand before other ports of the process by
    their own numbers.
    """

    def __init__(self, name: str, upstream: str, at: str = BESIDE) -> None:
        self.name, self._at = name, at
        self._host, _, port = upstream.rpartition(":")
        self._servers: list[asyncio.Server] = []
        self._thread = contextlib.ExitStack()
        self._loop = self._thread.enter_context(start_blocking_portal(name=f"tcp-proxy-{name}"))
        self._open = {way: asyncio.Event() for way in Way}
        for gate in self._open.values():
            gate.set()
        self.heard: Callable[[int], None] = lambda size: None  # of what comes from the process
        self._writers: set[asyncio.StreamWriter] = set()
        self.taken = 0  # connections
        self.endpoint = f"{at}:{self._loop.call(self._listen, 0, int(port))}"

    def carry(self, port: int) -> None:
        """Stands before this port of the process, too."""
        self._loop.call(self._listen, port, port)

    def blackhole(self, *ways: Way) -> None:
        """Passes nothing in these directions, by default in both, and keeps connections open."""
        for way in ways or Way:
            self._loop.call(self._open[way].clear)

    def heal(self) -> None:
        """Passes everything again, what was held back first."""
        for gate in self._open.values():
            self._loop.call(gate.set)

    def cut(self) -> None:
        """Ends every connection, and loses what is under way."""
        self._loop.call(self._cut_all)

    def close(self) -> None:
        self._loop.call(self._stop)
        self._thread.close()

    async def _listen(self, port: int, upstream: int) -> int:
        serve = functools.partial(self._serve, upstream)
        server = await asyncio.start_server(serve, self._at, port)
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        self._cut_all()
        for gate in self._open.values():
            gate.set()
        # asyncio tells of a connection that is cancelled as of a fault
        await until(lambda: not self._writers)

    def _cut_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(
        self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            there, back = await asyncio.open_connection(self._host, port)
        except OSError:
            writer.transport.abort()
            return
        self.taken += 1
        ends = {writer, back}
        self._writers |= ends
        ways = [
            asyncio.create_task(self._pump(reader, back, Way.IN)),
            asyncio.create_task(self._pump(there, writer, Way.OUT)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._writers -= ends
            for end in ends:
                end.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        with contextlib.suppress(ConnectionError, OSError):
            while data := await reader.read(CHUNK):
                if way is Way.OUT:
                    self.heard(len(data))
                await self._open[way].wait()
                writer.write(data)
                await writer.drain()
