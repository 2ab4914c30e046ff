"""A call in memory: its client's end, as stubs hand it out, and its handler on the server's
node."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from faults.network import Network, Node
from faults.pipes import UNAVAILABLE, Aborted, Pipe, failure


class Channel(Protocol):
    """Where a call goes."""

    network: Network
    endpoint: str


class Server(Protocol):
    """Who answers it."""

    async def handler(self, method: str, metadata: Any) -> Any:
        """What answers a method, behind every interceptor; None when nothing does."""


@dataclass(frozen=True)
class Shape:
    """What a stub knows of a method."""

    method: str
    request_streaming: bool
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    wait_for_ready: bool = False


class MemoryCall:
    """A call, as its client holds it."""

    def __init__(
        self, channel: Channel, shape: Shape, request: Any, timeout: float | None, metadata: Any
    ) -> None:
        network = channel.network
        self._network, self._shape = network, shape
        self.method = shape.method
        node = network.here()
        self.source, self.target = node.name, network.names.get(channel.endpoint, channel.endpoint)
        self.over = False
        self._up, self._down = Pipe(network, self, asked=True), Pipe(network, self, asked=False)
        self._serving: asyncio.Task[None] | None = None
        self._metadata = tuple(metadata or ())
        loop = asyncio.get_running_loop()
        self.deadline = None if timeout is None else loop.time() + timeout
        self._code: grpc.StatusCode | None = None
        self._error: grpc.aio.AioRpcError | None = None
        self._feeder: asyncio.Task[None] | None = None
        self._timer = None if timeout is None else loop.call_later(timeout, self._expire)
        self._endpoint = channel.endpoint
        if not node.alive:
            self._end_with(failure(UNAVAILABLE, "this process is dead"))
            return
        network.joined(self)
        loop.call_later(network.hop_s, network.deliver, self.source, self.target, self._arrived)
        if not shape.request_streaming:
            self._up.send(shape.write(request))
            self._up.end()
        elif request is not None:
            self._feeder = loop.create_task(self._feed(request))

    # The client's side.

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses()

    def __await__(self) -> Any:
        return self._one().__await__()

    async def read(self) -> Any:
        try:
            return await self._next()
        except StopAsyncIteration:
            return grpc.aio.EOF

    async def write(self, request: Any) -> None:
        if self.over:
            raise self._error or asyncio.InvalidStateError("the call is over")
        self._up.send(self._shape.write(request))

    async def done_writing(self) -> None:
        self._up.end()

    def cancel(self) -> bool:
        if self.over:
            return False
        self._end_with(failure(grpc.StatusCode.CANCELLED, "cancelled by the client"))
        self._leave()
        return True

    def done(self) -> bool:
        return self.over

    async def code(self) -> grpc.StatusCode:
        return self._code or grpc.StatusCode.UNKNOWN

    async def trailing_metadata(self) -> Any:
        return self._error.trailing_metadata() if self._error is not None else grpc.aio.Metadata()

    async def _responses(self) -> AsyncIterator[Any]:
        try:
            while True:
                try:
                    yield await self._next()
                except StopAsyncIteration:
                    return
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

    async def _feed(self, requests: Any) -> None:
        if hasattr(requests, "__aiter__"):
            async for request in requests:
                self._up.send(self._shape.write(request))
        else:
            for request in requests:
                self._up.send(self._shape.write(request))
        self._up.end()

    def _end_with(self, error: grpc.aio.AioRpcError | None) -> None:
        if self.over:
            return
        self.over = True
        self._error = error
        self._code = grpc.StatusCode.OK if error is None else error.code()
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
        """The server hears of it when the news gets there, or when it hears nothing for too
        long."""
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
        held = self._network.servers.get(self._endpoint)
        if self.over:
            return
        if held is None:
            if self._shape.wait_for_ready:
                asyncio.get_running_loop().call_later(0.05, self._arrived)
            else:
                self._end_with(
                    failure(
                        UNAVAILABLE, f"failed to connect to {self._endpoint}: Connection refused"
                    )
                )
            return
        node, server = held
        self._serving = node.context.run(
            asyncio.get_running_loop().create_task, self._serve(node, server)
        )

    def _stop_serving(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    async def _serve(self, node: Node, server: Server) -> None:
        context = Context(self)
        try:
            handler = await server.handler(self.method, self._metadata)
            if handler is None:
                raise Aborted(failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            read = handler.request_deserializer or bytes  # some read for themselves

            async def requests() -> AsyncIterator[Any]:
                with contextlib.suppress(StopAsyncIteration):
                    while True:
                        yield read(await self._up.next())

            asked = requests() if handler.request_streaming else read(await self._up.next())
            if handler.response_streaming:
                run = handler.stream_stream if handler.request_streaming else handler.unary_stream
                made = run(asked, context)
                if inspect.isawaitable(made):
                    context.send = lambda response: self._down.send(
                        handler.response_serializer(response)
                    )
                    await made
                else:
                    async with contextlib.aclosing(made) as responses:
                        async for response in responses:
                            self._down.send(handler.response_serializer(response))
            else:
                once = handler.stream_unary if handler.request_streaming else handler.unary_unary
                self._down.send(handler.response_serializer(await once(asked, context)))
            self._down.end()
        except Aborted as aborted:
            self._down.end(aborted.error)
        except asyncio.CancelledError:
            self._down.end(failure(grpc.StatusCode.CANCELLED, "cancelled by the server"))
            raise
        except Exception as error:
            self._down.end(failure(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}"))


class Context:
    """What a handler may ask of its call."""

    def __init__(self, call: MemoryCall) -> None:
        self._call = call
        self._trailing: Any = ()
        self.send: Callable[[Any], None] = lambda response: None

    async def write(self, response: Any) -> None:
        self.send(response)

    def time_remaining(self) -> float | None:
        deadline = self._call.deadline
        return None if deadline is None else max(deadline - asyncio.get_running_loop().time(), 0.0)

    def invocation_metadata(self) -> Any:
        return self._call._metadata

    def peer(self) -> str:
        return f"ipv4:{self._call.source}"

    def auth_context(self) -> dict[str, Any]:
        return {}

    def cancelled(self) -> bool:
        return self._call.over

    def done(self) -> bool:
        return self._call.over

    def set_trailing_metadata(self, trailing: Any) -> None:
        self._trailing = trailing

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        raise Aborted(failure(code, details, trailing_metadata or self._trailing))
