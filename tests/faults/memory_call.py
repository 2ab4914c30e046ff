"""A call in memory: its client's end as stubs hand it out, and its handler at the server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from tests.faults.pipes import UNAVAILABLE, Aborted, Pipe, failure

if TYPE_CHECKING:
    from tests.faults.memory_grpc import MemoryChannel, MemoryServer


@dataclass(frozen=True)
class Shape:
    """What a stub knows of a method."""

    method: str
    request_streaming: bool
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    wait_for_ready: bool = False


class MemoryCall:
    """A call, as its client holds it: to be awaited or iterated, or cancelled."""

    def __init__(
        self,
        channel: MemoryChannel,
        shape: Shape,
        request: Any,
        timeout: float | None,
        metadata: Any,
    ) -> None:
        network = channel.network
        self._network, self._shape = network, shape
        self.method, self.metadata = shape.method, tuple(metadata or ())
        node = network.here()
        self.source, self.target = node.name, network.names.get(channel.endpoint, channel.endpoint)
        self.endpoint = channel.endpoint
        self.over = False
        self._up, self._down = Pipe(network, self, asked=True), Pipe(network, self, asked=False)
        self._serving: asyncio.Task[None] | None = None
        self._reading = self._responses()  # one for the life of a call, as gRPC has it
        loop = asyncio.get_running_loop()
        self.deadline = None if timeout is None else loop.time() + timeout
        self._feeder: asyncio.Task[None] | None = None
        self._timer = None if timeout is None else loop.call_later(timeout, self._expire)
        if not node.alive:
            self._end_with(failure(UNAVAILABLE, "this process is dead"))
            return
        network.joined(self)
        loop.call_later(network.hop_s, network.deliver, self.source, self.target, self._arrived)
        if shape.request_streaming:
            self._feeder = loop.create_task(self._feed(request))
        else:
            self._up.send(shape.write(request))
            self._up.end()

    # The client's side.

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._reading

    def __await__(self) -> Any:
        return self._one().__await__()

    def cancel(self) -> bool:
        if self.over:
            return False
        self._end_with(failure(grpc.StatusCode.CANCELLED, "cancelled by the client"))
        self._leave()
        return True

    async def _responses(self) -> AsyncIterator[Any]:
        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield await self._next()
        finally:
            self.cancel()

    async def _one(self) -> Any:
        try:
            return await self._next()
        except StopAsyncIteration:
            raise failure(grpc.StatusCode.INTERNAL, "no response") from None
        finally:
            self.cancel()

    async def _next(self) -> Any:
        try:
            return self._shape.read(await self._down.next())
        except grpc.aio.AioRpcError as error:
            self._end_with(error)
            if (
                error.code() is grpc.StatusCode.CANCELLED
                and error.details() == "cancelled by the client"
            ):
                raise asyncio.CancelledError from None
            raise
        except StopAsyncIteration:
            self._end_with(None)
            raise

    async def _feed(self, requests: AsyncIterator[Any]) -> None:
        async for request in requests:
            self._up.send(self._shape.write(request))
        self._up.end()

    def _end_with(self, error: grpc.aio.AioRpcError | None) -> None:
        if self.over:
            return
        self.over = True
        self._network.calls.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._feeder is not None:
            self._feeder.cancel()
        if error is not None:
            self._down.fail_now(error)

    def _expire(self) -> None:
        self._end_with(failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        self._leave()

    def _leave(self) -> None:
        """The server hears of it when the news gets there, or after a long silence."""
        network, loop = self._network, asyncio.get_running_loop()
        loop.call_later(
            network.hop_s, network.deliver, self.source, self.target, self._stop_serving
        )
        loop.call_later(network.watch_s, self._stop_serving)

    def cut(self, why: str) -> None:
        for name, job in (
            (self.source, lambda: self._end_with(failure(UNAVAILABLE, why))),
            (self.target, self._stop_serving),
        ):
            node = self._network.nodes.get(name)
            if node is None or not node.alive:
                job()
            else:
                node.when_awake(job)

    # The server's side.

    def _arrived(self) -> None:
        if self.over:
            return
        loop, held = asyncio.get_running_loop(), self._network.servers.get(self.endpoint)
        if held is not None:
            node, server = held
            self._serving = node.context.run(loop.create_task, self._serve(server))
        elif self._shape.wait_for_ready:
            loop.call_later(0.05, self._arrived)
        else:
            why = f"failed to connect to {self.endpoint}: Connection refused"
            self._end_with(failure(UNAVAILABLE, why))

    def _stop_serving(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    async def _serve(self, server: MemoryServer) -> None:
        try:
            handler = await server.handler(self.method, self.metadata)
            if handler is None:
                raise Aborted(failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            context = Context(self, handler.response_serializer)
            read = handler.request_deserializer or bytes  # some read for themselves
            if handler.request_streaming:
                asked: Any = self._requests(read)
            else:
                asked = read(await self._up.next())
            if handler.response_streaming:  # it writes by itself
                run = handler.stream_stream if handler.request_streaming else handler.unary_stream
                await run(asked, context)
            else:
                await context.write(await handler.unary_unary(asked, context))
            self._down.end()
        except Aborted as aborted:
            self._down.end(aborted.error)
        except asyncio.CancelledError:
            self._down.end(failure(grpc.StatusCode.CANCELLED, "cancelled by the server"))
            raise
        except Exception as error:
            self._down.end(failure(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"))

    async def _requests(self, read: Callable[[bytes], Any]) -> AsyncIterator[Any]:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield read(await self._up.next())

    def answer(self, data: bytes) -> None:
        self._down.send(data)


class Context:
    def __init__(self, call: MemoryCall, serialize: Callable[[Any], bytes]) -> None:
        self._call, self._serialize = call, serialize

    async def send_initial_metadata(self, metadata: Any) -> None: ...

    async def write(self, response: Any) -> None:
        self._call.answer(self._serialize(response))

    def time_remaining(self) -> float | None:
        deadline = self._call.deadline
        return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)

    def invocation_metadata(self) -> Any:
        return self._call.metadata

    def auth_context(self) -> dict[str, Any]:
        return {}

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        raise Aborted(failure(code, details, trailing_metadata))
