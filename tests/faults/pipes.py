"""One direction of a call in memory, and how calls fail."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc

from tests.faults.boundaries import kind_of
from tests.faults.network import Network
from tests.faults.plan import Action

if TYPE_CHECKING:
    from tests.faults.memory_call import MemoryCall

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
_END = object()


def failure(code: grpc.StatusCode, details: str, trailing: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


class Aborted(grpc.aio.AbortError):  # type: ignore[misc]
    """A handler ended its call with a status."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__()
        self.error = error


class Pipe:
    """One direction of a call: messages in order, then an end or an error."""

    def __init__(self, network: Network, call: MemoryCall, *, asked: bool) -> None:
        self._network, self._call, self._asked = network, call, asked
        self._queue: deque[Any] = deque()
        self._news = asyncio.Event()
        self._last = 0.0

    def send(self, data: bytes) -> None:
        call, network = self._call, self._network
        source = call.source if self._asked else call.target
        kind = kind_of(call.method, self._asked, data)
        message = network.plan.meets(source, call.method, kind)
        fate, data = network.plan.fate(message), network.plan.tampered(message, data)
        if fate.action is Action.CUT:
            call.cut("Connection reset by peer")
        elif fate.action is Action.SWAP:
            self._on_its_way(data, fate.late_s, waits=False)
        elif fate.action is not Action.DROP:
            self._on_its_way(data, fate.late_s)
            if fate.action is Action.TWICE:
                self._on_its_way(data, 0.0)

    def end(self, error: Exception | None = None) -> None:
        """Behind what was sent."""
        self._on_its_way(_END if error is None else error, 0.0)

    def fail_now(self, error: Exception) -> None:
        """Before what is still on its way."""
        self._queue.append(error)
        self._news.set()

    async def next(self) -> Any:
        """The next message; raises StopAsyncIteration at the end."""
        while not self._queue:
            self._news.clear()
            await self._news.wait()
        item = self._queue[0]
        if item is _END:
            raise StopAsyncIteration
        if isinstance(item, Exception):
            raise item
        return self._queue.popleft()

    def _on_its_way(self, item: Any, late_s: float, *, waits: bool = True) -> None:
        loop = asyncio.get_running_loop()
        at = max(loop.time() + self._network.hop_s + late_s, self._last)
        if waits:
            self._last = at + 1e-9  # two timers of one moment may fire in any order
        call = self._call
        source, target = (call.source, call.target) if self._asked else (call.target, call.source)
        loop.call_at(at, self._network.deliver, source, target, lambda: self._arrive(item))

    def _arrive(self, item: Any) -> None:
        if not self._call.over:
            self._queue.append(item)
            self._news.set()
