"""Rows pushed to a drafter over a real stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from dspark.runtime.telemetry import Metrics
from dspark.wire.v1 import features_pb2, features_pb2_grpc
from tests.unit.verify_service.test_feature_push import pusher, rows
from verify_service.feature_push import Sink


class Acknowledging(features_pb2_grpc.FeaturesServicer):
    """A drafter that takes everything."""

    async def Push(
        self,
        request_iterator: AsyncIterator[features_pb2.FeatureChunk],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[features_pb2.FeatureAck]:
        taken = 0
        async for _ in request_iterator:
            taken += 1
            yield features_pb2.FeatureAck(chunks=taken)


class FailingOnce:
    """A listener with a bug, the first time that it hears of something."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self._failed = False

    def rows_came(self, sink: Sink, ack: features_pb2.FeatureAck) -> None:
        if not self._failed:
            self._failed = True
            raise RuntimeError("a bug")
        self.heard.put_nowait("came")

    def rows_lost(self, sink: Sink, why: str) -> None:
        self.heard.put_nowait(why)


async def test_a_stream_that_a_bug_ends_is_lost_and_the_next_rows_get_another() -> None:
    server = grpc.aio.server()
    features_pb2_grpc.add_FeaturesServicer_to_server(Acknowledging(), server)  # type: ignore[no-untyped-call]
    sink = Sink(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", 5)
    await server.start()
    push, listener = pusher(Metrics(), queue_rows=10), FailingOnce()
    push.listeners.append(listener)
    for heard in ("a bug", "came"):
        push.push(sink, rows(8))
        assert await asyncio.wait_for(listener.heard.get(), 20) == heard
    await push.close()
    await server.stop(0)
