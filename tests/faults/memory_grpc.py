"""What this system uses of `grpc.aio`, over a `Network` in memory: a server, channels, calls, their
errors.

Messages are serialised and read as over a wire, interceptors and health run, statuses and metadata
come through. What is left out: flow control (a call holds any number of messages) and connections
(each call has its own way).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import Any

import grpc

from dspark.runtime.channel import auth_metadata
from dspark.runtime.security import Security
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc
from tests.faults.memory_call import MemoryCall, Shape
from tests.faults.network import Network


class MemoryChannel:
    def __init__(self, network: Network, endpoint: str, *_: Any, **__: Any) -> None:
        self.network, self.endpoint = network, endpoint
        self._calls: list[MemoryCall] = []

    async def close(self, grace: float | None = None) -> None:
        for call in self._calls:
            call.cancel()

    def _method(
        self,
        method: str,
        request_serializer: Any,
        response_deserializer: Any,
        *,
        streaming: bool = False,
        **_: Any,
    ) -> Callable[..., MemoryCall]:
        def call(
            request: Any = None,
            *,
            timeout: float | None = None,
            metadata: Any = None,
            wait_for_ready: bool | None = None,
            **_: Any,
        ) -> MemoryCall:
            shape = Shape(
                method, streaming, request_serializer, response_deserializer, bool(wait_for_ready)
            )
            made = MemoryCall(self, shape, request, timeout, metadata)
            self._calls = [each for each in self._calls if not each.over] + [made]
            return made

        return call

    unary_unary = unary_stream = _method
    stream_stream = partialmethod(_method, streaming=True)


class MemoryServer:
    """Serves the node whose code made it."""

    def __init__(self, network: Network, *, interceptors: Iterable[Any] = (), **_: Any) -> None:
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

    async def start(self) -> None:
        """Calls are taken from the moment a port is there."""

    async def stop(self, grace: float | None) -> None:
        for address in self._binds:
            self._network.servers.pop(address, None)
        mine = [call for call in self._network.calls if call.endpoint in self._binds]
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

        through: Callable[..., Any] = find
        for interceptor in reversed(self._interceptors):
            through = partial(interceptor.intercept_service, through)
        return await through(details)


class MemoryDrafterStream:
    """A verifier's stream to a drafter, like `DrafterStream`, in tasks instead of threads."""

    leaving = False  # nothing here waits in simulated time

    def __init__(
        self,
        network: Network,
        endpoint: str,
        hello: draft_pb2.RoundsHello,
        security: Security,
        came: Callable[[MemoryDrafterStream, draft_pb2.RoundsEvent], None],
        lost: Callable[[MemoryDrafterStream, str], None],
    ) -> None:
        self._came, self._lost = came, lost
        self._unsent: asyncio.Queue[draft_pb2.RoundsCommand | None] = asyncio.Queue()
        self.send(draft_pb2.RoundsCommand(hello=hello))
        stub = draft_pb2_grpc.DraftStub(MemoryChannel(network, endpoint))
        self._call = stub.Rounds(self._commands(), metadata=auth_metadata(security.token))
        self._reading = asyncio.get_running_loop().create_task(self._read())

    def send(self, command: draft_pb2.RoundsCommand) -> None:
        self._unsent.put_nowait(command)

    def close(self) -> None:
        self._unsent.put_nowait(None)
        self._call.cancel()

    async def _commands(self) -> AsyncIterator[draft_pb2.RoundsCommand]:
        while (command := await self._unsent.get()) is not None:
            yield command

    async def _read(self) -> None:
        why = "the drafter ended the stream"
        try:
            async for event in self._call:
                self._came(self, event)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        self._lost(self, why)
