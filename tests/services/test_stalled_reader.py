"""A client that stops reading: freed in time, told why when it reads on, neighbours unharmed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from dspark.wire.v1 import generate_pb2_grpc
from tests.faults.pair import FLAT
from tests.faults.synthetic_cell import message, small_channel
from tests.services.cell import Cell, ended
from tests.waiting import until


@pytest.fixture
async def coordinator(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    async with Cell(pair=FLAT) as cell:
        await cell.verifier(kv_tokens=1 << 17, max_sequences=8)
        settings = {"max_unread_s": 1.0, **getattr(request, "param", {})}
        yield await cell.coordinator(policy="off", **settings)


async def test_a_client_that_stops_reading_is_cut_and_hears_why(coordinator: Any) -> None:
    async with (
        small_channel(coordinator.endpoint) as small,
        grpc.aio.insecure_channel(coordinator.endpoint) as ordinary,
    ):
        stalled = generate_pb2_grpc.GenerationStub(small).Generate(message(30_000))
        await stalled.read()
        # It takes longer than a message may wait to be taken.
        neighbour = asyncio.create_task(
            ended(generate_pb2_grpc.GenerationStub(ordinary).Generate(message(200)))
        )
        async with asyncio.timeout(60):
            await until(lambda: coordinator.metrics.value("slow_readers_cut_total"))
            # the neighbour, if it still reads
            assert coordinator.metrics.value("client_streams") <= 1
            assert (await ended(stalled))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await neighbour)[0] is grpc.StatusCode.OK
            await until(lambda: not coordinator.cell.admission.running)


@pytest.mark.parametrize("coordinator", [{"max_unread_s": 1e-6}], indirect=True, ids=["no time"])
async def test_a_client_that_no_time_is_left_to_hears_why(coordinator: Any) -> None:
    async with grpc.aio.insecure_channel(coordinator.endpoint) as channel, asyncio.timeout(20):
        call = generate_pb2_grpc.GenerationStub(channel).Generate(message(200))
        assert (await ended(call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("coordinator", [{"max_running": 1}], indirect=True, ids=["one place"])
async def test_who_waits_in_line_longer_than_a_message_may_wait_is_not_cut(
    coordinator: Any,
) -> None:
    async with grpc.aio.insecure_channel(coordinator.endpoint) as channel:
        stub = generate_pb2_grpc.GenerationStub(channel)
        first = stub.Generate(message(200))
        await first.read()
        asked = [asyncio.create_task(ended(call)) for call in (first, stub.Generate(message(4)))]
        assert [code for code, _ in await asyncio.gather(*asked)] == [grpc.StatusCode.OK] * 2
        assert coordinator.metrics.value("slow_readers_cut_total") == 0
