"""Rows pushed to a drafter over a real stream."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from dspark.rounds.control import DrafterAt
from dspark.runtime.security import Security
from dspark.runtime.telemetry import Metrics
from dspark.wire.orders import PackedRows
from dspark.wire.v1 import features_pb2, features_pb2_grpc
from tests.services.cell import standing_in
from verify_service.batch_runner import FeatureRun
from verify_service.row_stream import RowStream

ROWS = FeatureRun(1, 1, 0, list(range(8)), PackedRows("bfloat16", 8, 64, bytes(128 * 8)))


class Acknowledging(features_pb2_grpc.FeaturesServicer):
    """A drafter that takes two chunks."""

    async def Push(
        self,
        request_iterator: AsyncIterator[features_pb2.FeatureChunk],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[features_pb2.FeatureAck]:
        for taken in (1, 2):
            await anext(request_iterator)
            yield features_pb2.FeatureAck(chunks=taken)


@pytest.mark.parametrize("bug", [False, True])
async def test_a_stream_is_lost_once_when_its_drafter_or_a_bug_ends_it(bug: bool) -> None:
    metrics = Metrics()
    worker: Any = SimpleNamespace(
        engine=SimpleNamespace(projection="p"), security=Security(), incarnation=1, metrics=metrics
    )
    heard: list[int | str] = []

    def came(stream: RowStream, ack: features_pb2.FeatureAck) -> None:
        if bug:
            raise RuntimeError("a bug")
        heard.append(ack.chunks)

    loop = asyncio.get_running_loop()
    add: Any = features_pb2_grpc.add_FeaturesServicer_to_server
    async with standing_in(add, Acknowledging()) as place:
        stream = RowStream(
            worker, DrafterAt(1, place, 5), loop, came, lambda _, why: heard.append(why)
        )
        for _ in range(3):
            stream.push(ROWS)
        await asyncio.wait_for(asyncio.wrap_future(stream.ended), 20)
    assert heard == (["a bug"] if bug else [1, 2, "the drafter ended the stream"])
    assert metrics.value("feature_rows_total", direction="sent") >= 8
