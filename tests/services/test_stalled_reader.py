"""A client that stops reading, on a real connection: freed in time, told why when it reads on, a
neighbour unharmed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import workers
from faults.pair import FLAT

from coordinator.cells.local_cell import LocalCell
from coordinator.frontend.front_end import ClientsProcess
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc
from tests.waiting import until

SMALL = [
    ("grpc.http2.lookahead_bytes", 1024),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.use_local_subchannel_pool", 1),
]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[ClientsProcess[LocalCell]]:
    own = {"engine": "synthetic", "synthetic": str(FLAT), "kv_tokens": 1 << 17, "max_sequences": 8}
    async with (
        workers.verifier(**own) as v,
        workers.coordinator(
            verify=(v.endpoint,), max_unread_s=1.0, policy="off", **settings
        ) as coordinator,
    ):
        yield coordinator


def request(tokens: int) -> generate_pb2.GenerateRequest:
    params = generate_pb2.SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
    return generate_pb2.GenerateRequest(
        tokenized=generate_pb2.TokenizedInput(input_ids=[1, 2, 3]), sampling_params=params
    )


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
        grpc.aio.insecure_channel(coordinator.endpoint, options=SMALL) as small,
        grpc.aio.insecure_channel(coordinator.endpoint) as ordinary,
    ):
        stalled = generate_pb2_grpc.GenerationStub(small).Generate(request(30_000))
        await stalled.read()
        # It takes longer than a message may wait to be taken.
        neighbour = asyncio.create_task(
            read(generate_pb2_grpc.GenerationStub(ordinary).Generate(request(200)))
        )
        async with asyncio.timeout(60):
            await until(lambda: coordinator.metrics.value("slow_readers_cut_total"))
            assert (
                coordinator.metrics.value("client_streams") <= 1
            )  # the neighbour, if it still reads
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
        first = stub.Generate(request(200))
        await first.read()
        asked = [asyncio.create_task(read(call)) for call in (first, stub.Generate(request(4)))]
        assert [code for _, code in await asyncio.gather(*asked)] == [grpc.StatusCode.OK] * 2
        assert coordinator.metrics.value("slow_readers_cut_total") == 0
