"""A gRPC proxy before one process: every message of every call passes a `Plan`, byte for byte
otherwise.

It speaks for any service, since it reads neither requests nor replies, except for the kind of
internal messages. The hung peer, the lost route and the reset connection are `tcp_proxy`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from dspark.runtime.channel import MAX_MESSAGE
from faults.boundaries import kind_of
from faults.loop_thread import LoopThread
from faults.plan import Action, Plan
from faults.tcp_proxy import BESIDE

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
]
_HOP_BY_HOP = ("user-agent", "grpc-accept-encoding", "accept-encoding", "te", "content-type")


class Cut(Exception):
    """The plan breaks this call."""


class WireProxy:
    """Before the process at `upstream`; `endpoint` is where others find it. Runs on a thread of its
    own.

    It stands at an address of its own, so that it can stand before other ports of the process by
    their own numbers.
    """

    def __init__(self, name: str, upstream: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self._host, _, port = upstream.rpartition(":")
        self._open: list[tuple[grpc.aio.Server, grpc.aio.Channel]] = []
        self._loop = LoopThread(f"wire-proxy-{name}")
        self.endpoint = f"{BESIDE}:{self._loop.run(self._listen(0, int(port)))}"

    def carry(self, port: int) -> None:
        """Stands before this port of the process, too."""
        self._loop.run(self._listen(port, port))

    def close(self) -> None:
        self._loop.run(self._stop())
        self._loop.close()

    async def _listen(self, port: int, upstream: int) -> int:
        channel = grpc.aio.insecure_channel(f"{self._host}:{upstream}", options=_OPTIONS)
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_Everything(self, channel),))
        at = server.add_insecure_port(f"{BESIDE}:{port}")
        await server.start()
        self._open.append((server, channel))
        return int(at)

    async def _stop(self) -> None:
        for server, channel in self._open:
            await server.stop(None)
            await channel.close()

    async def forward(
        self, channel: grpc.aio.Channel, method: str, requests: AsyncIterator[bytes], context: Any
    ) -> AsyncIterator[bytes]:
        """One call, both ways."""
        metadata = tuple(
            (key, value) for key, value in context.invocation_metadata() if key not in _HOP_BY_HOP
        )
        call = channel.stream_stream(method)(
            self._through(method, requests, asked=True),
            metadata=metadata,
            timeout=context.time_remaining(),
        )
        try:
            async for response in self._through(method, call, asked=False):
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(
                error.code(), error.details() or "", tuple(error.trailing_metadata() or ())
            )
        except Cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
        finally:
            call.cancel()

    async def _through(
        self, method: str, messages: AsyncIterator[bytes], *, asked: bool
    ) -> AsyncIterator[bytes]:
        source = "" if asked else self.name
        swapped: list[bytes] = []
        async for data in messages:
            message = self.plan.meets(source, method, kind_of(method, asked, data))
            fate, data = self.plan.fate(message), self.plan.tampered(message, data)
            if fate.action is Action.CUT:
                raise Cut
            if fate.action is Action.DROP:
                continue
            if fate.action is Action.SWAP:
                swapped.append(data)
                continue
            if fate.action is Action.LATE:
                await asyncio.sleep(fate.late_s)
            yield data
            if fate.action is Action.TWICE:
                yield data
            while swapped:
                yield swapped.pop(0)
        for data in swapped:
            yield data


class _Everything(grpc.GenericRpcHandler):
    """Any method, as a stream of bytes both ways: a unary call is a stream of one."""

    def __init__(self, proxy: WireProxy, channel: grpc.aio.Channel) -> None:
        self._proxy, self._channel = proxy, channel

    def service(self, details: Any) -> Any:
        async def run(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async with contextlib.aclosing(
                self._proxy.forward(self._channel, details.method, requests, context)
            ) as responses:
                async for response in responses:
                    yield response

        return grpc.stream_stream_rpc_method_handler(run)
