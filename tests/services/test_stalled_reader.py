"""A client that stops reading, on a real connection: freed in time, told why when it reads on, a
neighbour unharmed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from coordinator.cells.local_cell import LocalCell
from coordinator.frontend.front_end import ClientsProcess
from dspark.wire.v1 import generate_pb2_grpc
from tests.faults.pair import FLAT
from tests.faults.synthetic_cell import message, small_channel
from tests.services.cell import Cell
from tests.waiting import until


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[ClientsProcess[LocalCell]]:
    async with Cell(pair=FLAT) as cell:
        await cell.verifier(kv_tokens=1 << 17, max_sequences=8)
        yield await cell.coordinator(max_unread_s=1.0, policy="off", **settings)


async def read(call: Any) -> tuple[int, grpc.StatusCode]:
    """(messages, status) of the rest of a call."""
    count = 0
    try:
        while await call.read() is not grpc.aio.EOF:
            count += 1
    except grpc.aio.AioRpcError as error:
        return count, error.code()
    return count, await call.code()


async def test_a_client_that_stops_reading_is_cut_and_hears_why() -> None:
    async with (
        serving() as coordinator,
        small_channel(coordinator.endpoint) as small,
        grpc.aio.insecure_channel(coordinator.endpoint) as ordinary,
    ):
        stalled = generate_pb2_grpc.GenerationStub(small).Generate(message(30_000))
        await stalled.read()
        # It takes longer than a message may wait to be taken.
        neighbour = asyncio.create_task(
            read(generate_pb2_grpc.GenerationStub(ordinary).Generate(message(200)))
        )
        async with asyncio.timeout(60):
            await until(lambda: coordinator.metrics.value("slow_readers_cut_total"))
            # the neighbour, if it still reads
            assert coordinator.metrics.value("client_streams") <= 1
            count, code = await read(stalled)
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert count < 30_000
            assert (await neighbour)[1] is grpc.StatusCode.OK
            await until(lambda: not coordinator.cell.admission.running)


async def test_who_waits_in_line_longer_than_a_message_may_wait_is_not_cut() -> None:
    async with (
        serving(max_running=1) as coordinator,
        grpc.aio.insecure_channel(coordinator.endpoint) as channel,
    ):
        stub = generate_pb2_grpc.GenerationStub(channel)
        first = stub.Generate(message(200))
        await first.read()
        asked = [asyncio.create_task(read(call)) for call in (first, stub.Generate(message(4)))]
        assert [code for _, code in await asyncio.gather(*asked)] == [grpc.StatusCode.OK] * 2
        assert coordinator.metrics.value("slow_readers_cut_total") == 0
