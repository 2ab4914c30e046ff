"""A verifier's stream to a drafter in simulated time: what `DrafterStream` is on threads, in tasks
of the node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from dspark.runtime.channel import auth_metadata
from dspark.wire.v1 import draft_pb2, draft_pb2_grpc
from faults.memory_grpc import MemoryChannel
from faults.network import Network


class MemoryDrafterStream:
    """Keeps the names of `DrafterStream`."""

    leaving = False  # nothing here waits in simulated time

    def __init__(
        self,
        network: Network,
        endpoint: str,
        hello: draft_pb2.RoundsHello,
        *,
        token: str | None,
        came: Callable[[draft_pb2.RoundsEvent], None],
        lost: Callable[[str], None],
        **_: Any,
    ) -> None:
        self._came, self._lost = came, lost
        self._unsent: asyncio.Queue[draft_pb2.RoundsCommand | None] = asyncio.Queue()
        self.send(draft_pb2.RoundsCommand(hello=hello))
        stub = draft_pb2_grpc.DraftStub(MemoryChannel(network, endpoint))  # type: ignore[no-untyped-call]
        self._call = stub.Rounds(self._commands(), metadata=auth_metadata(token))
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
                self._came(event)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name.lower()}: {error.details()}"
        self._lost(why)
