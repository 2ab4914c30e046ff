"""A gRPC proxy before one process: every message of every call passes a `Plan`, byte for byte otherwise.

It speaks for any service, since it reads neither requests nor replies, except for the kind of internal messages. The
hung peer, the lost route and the reset connection are `tcp_proxy`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from dspark.runtime.channel import MAX_MESSAGE
from faults.boundaries import kind_of
from faults.loop_thread import LoopThread
from faults.plan import Action, Plan

_OPTIONS = [("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE)]
_HOP_BY_HOP = ("user-agent", "grpc-accept-encoding", "accept-encoding", "te", "content-type")


class Cut(Exception):
    """The plan breaks this call."""


class WireProxy:
    """Before the process at `upstream`; `endpoint` is where others find it. Runs on a thread of its own."""

    def __init__(self, name: str, upstream: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        self._upstream = upstream
        self._loop = LoopThread(f"wire-proxy-{name}")
        self.endpoint = self._loop.run(self._start())

    def close(self) -> None:
        self._loop.run(self._stop())
        self._loop.close()

    async def _start(self) -> str:
        self._channel = grpc.aio.insecure_channel(self._upstream, options=_OPTIONS)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Everything(self),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return f"127.0.0.1:{port}"

    async def _stop(self) -> None:
        await self._server.stop(None)
        await self._channel.close()

    async def forward(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """One call, both ways."""
        metadata = tuple((key, value) for key, value in context.invocation_metadata() if key not in _HOP_BY_HOP)
        call = self._channel.stream_stream(method)(
            self._through(method, requests, asked=True), metadata=metadata, timeout=context.time_remaining()
        )
        try:
            async for response in self._through(method, call, asked=False):
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        except Cut:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "Connection reset by peer")
        finally:
            call.cancel()

    async def _through(self, method: str, messages: AsyncIterator[bytes], *, asked: bool) -> AsyncIterator[bytes]:
        ends = ("", self.name) if asked else (self.name, "")
        swapped: list[bytes] = []
        async for data in messages:
            message = self.plan.meets(*ends, method, kind_of(method, asked, data), time.monotonic())
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

    def __init__(self, proxy: WireProxy) -> None:
        self._proxy = proxy

    def service(self, details: Any) -> Any:
        async def run(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async with contextlib.aclosing(self._proxy.forward(details.method, requests, context)) as responses:
                async for response in responses:
                    yield response

        return grpc.stream_stream_rpc_method_handler(run)
