"""What this system uses of `grpc.aio`, over a `Network` in memory: a server, channels, calls, their errors.

Messages are serialised and read as over a wire, interceptors and health run, statuses and metadata come through. What
is left out: flow control (a call holds any number of messages) and connections (each call has its own way).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import grpc

from faults.boundaries import kind_of
from faults.network import Network, Node
from faults.plan import Action

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
_END = object()


def failure(code: grpc.StatusCode, details: str, trailing: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details)


class Aborted(grpc.aio.AbortError):
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
        source, target = (call.source, call.target) if self._asked else (call.target, call.source)
        kind = kind_of(call.method, self._asked, data)
        plan = network.plan
        message = plan.meets(source, target, call.method, kind, asyncio.get_running_loop().time())
        fate, data = plan.fate(message), plan.tampered(message, data)
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


class MemoryCall:
    """A call, as its client holds it."""

    def __init__(
        self, channel: MemoryChannel, shape: Shape, request: Any, timeout: float | None, metadata: Any
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

    async def initial_metadata(self) -> Any:
        return grpc.aio.Metadata()

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
            if error.code() is grpc.StatusCode.CANCELLED and error.details() == "cancelled by the client":
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
        """The server hears of it when the news gets there, or when it hears nothing for too long."""
        network, loop = self._network, asyncio.get_running_loop()
        loop.call_later(network.hop_s, network.deliver, self.source, self.target, self._stop_serving)
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
                self._end_with(failure(UNAVAILABLE, f"failed to connect to {self._endpoint}: Connection refused"))
            return
        node, server = held
        self._serving = node.context.run(asyncio.get_running_loop().create_task, self._serve(node, server))

    def _stop_serving(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    async def _serve(self, node: Node, server: MemoryServer) -> None:
        context = Context(self)
        try:
            handler = await server.handler(self.method, self._metadata)
            if handler is None:
                raise Aborted(failure(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
            read = handler.request_deserializer

            async def requests() -> AsyncIterator[Any]:
                with contextlib.suppress(StopAsyncIteration):
                    while True:
                        yield read(await self._up.next())

            asked = requests() if handler.request_streaming else read(await self._up.next())
            if handler.response_streaming:
                run = handler.stream_stream if handler.request_streaming else handler.unary_stream
                made = run(asked, context)
                if inspect.isawaitable(made):
                    context.send = lambda response: self._down.send(handler.response_serializer(response))
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


@dataclass(frozen=True)
class Shape:
    """What a stub knows of a method."""

    method: str
    request_streaming: bool
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    wait_for_ready: bool = False


class MemoryChannel:
    """To one address."""

    def __init__(self, network: Network, endpoint: str) -> None:
        self.network, self.endpoint = network, endpoint
        self._calls: list[MemoryCall] = []

    def unary_unary(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self._method(method, False, request_serializer, response_deserializer)

    unary_stream = unary_unary

    def stream_stream(self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        return self._method(method, True, request_serializer, response_deserializer)

    stream_unary = stream_stream

    async def close(self, grace: float | None = None) -> None:
        for call in self._calls:
            call.cancel()

    def _method(self, method: str, streaming: bool, write: Any, read: Any) -> Callable[..., MemoryCall]:
        def call(
            request: Any = None,
            *,
            timeout: float | None = None,
            metadata: Any = None,
            wait_for_ready: bool | None = None,
            **_: Any,
        ) -> MemoryCall:
            shape = Shape(method, streaming, write, read, bool(wait_for_ready))
            made = MemoryCall(self, shape, request, timeout, metadata)
            self._calls = [each for each in self._calls if not each.over] + [made]
            return made

        return call


class MemoryServer:
    """Serves the node whose code made it."""

    def __init__(self, network: Network, interceptors: Iterable[Any] = ()) -> None:
        self._network, self._interceptors = network, tuple(interceptors or ())
        self._handlers: list[Any] = []
        self._binds: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Generated code says the same again by `add_generic_rpc_handlers`."""

    def add_insecure_port(self, bind: str) -> int:
        port = self._network.listen(bind, self)
        self._binds.append(f"{bind.rpartition(':')[0]}:{port}")
        return port

    def add_secure_port(self, bind: str, credentials: Any) -> int:
        return self.add_insecure_port(bind)

    async def start(self) -> None:
        """Calls are taken from the moment a port is there."""

    async def stop(self, grace: float | None) -> None:
        for address in self._binds:
            self._network.servers.pop(address, None)
        mine = [call for call in self._network.calls if getattr(call, "_endpoint", "") in self._binds]
        if grace:
            await asyncio.sleep(0 if not mine else grace)
        for call in mine:
            if call in self._network.calls:
                call.cut("the server stops")

    async def handler(self, method: str, metadata: Any) -> Any:
        """What answers a method, behind every interceptor."""
        details = SimpleNamespace(method=method, invocation_metadata=metadata)

        async def find(details: Any) -> Any:
            found = (each.service(details) for each in self._handlers)
            return next((handler for handler in found if handler is not None), None)

        continuation = find
        for interceptor in reversed(self._interceptors):

            async def through(details: Any, inner: Any = continuation, outer: Any = interceptor) -> Any:
                return await outer.intercept_service(inner, details)

            continuation = through
        return await continuation(details)


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

    def peer_identities(self) -> None:
        return None

    def cancelled(self) -> bool:
        return self._call.over

    def done(self) -> bool:
        return self._call.over

    def set_trailing_metadata(self, trailing: Any) -> None:
        self._trailing = trailing

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nobody here waits for it."""

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        raise Aborted(failure(code, details, trailing_metadata or self._trailing))
