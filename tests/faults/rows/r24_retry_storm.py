"""Row 24: half the pool answers UNAVAILABLE: what clients make of it, in calls per request.

Two listeners, one that serves and one that refuses; every client goes to both in turn, as behind a
name with two addresses. Counted are calls that arrive, against requests that were made: with
retries alone, which are up to four attempts each, there would be about twice as many.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import grpc

from dspark.client import AsyncClient, Unavailable
from dspark.client.request import SERVICE_CONFIG
from dspark.runtime.channel import open_channel
from dspark.wire.v1 import generate_pb2, generate_pb2_grpc
from tests.faults.rows.program import Args, Rows, statement

BAR = 1.1


class Listener(generate_pb2_grpc.GenerationServicer):
    def __init__(self, name: str, calls: Counter[str]) -> None:
        self._name, self._calls = name, calls

    async def Generate(
        self, request: generate_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generate_pb2.GenerateResponse]:
        self._calls[self._name] += 1
        if self._name == "refuses":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no verifier is connected")
        yield generate_pb2.GenerateResponse(
            complete=generate_pb2.GenerateComplete(finish_reason="FINISH_REASON_LENGTH")
        )


def rows(args: Args) -> Rows:
    value = asyncio.run(_measure(200 if args.long else 40, 50))
    bars = {f"calls that arrive <= {BAR:g} x requests made": value["calls_per_request"] <= BAR}
    yield statement("24", "a retry storm is none", value, bars)


async def _measure(clients: int, requests: int) -> dict[str, float]:
    calls: Counter[str] = Counter()
    servers, ports = [], []
    for name in ("serves", "refuses"):
        server = grpc.aio.server()
        generate_pb2_grpc.add_GenerationServicer_to_server(Listener(name, calls), server)
        ports.append(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        servers.append(server)
    name = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in ports)
    outcomes: Counter[str] = Counter()
    await asyncio.gather(*(_client(name, requests, outcomes) for _ in range(clients)))
    for server in servers:
        await server.stop(None)
    return {
        "clients": clients,
        "requests": clients * requests,
        "calls": calls.total(),
        "calls_per_request": round(calls.total() / (clients * requests), 3),
        "answered": outcomes["answered"],
        "unavailable": outcomes["unavailable"],
    }


async def _client(endpoint: str, requests: int, outcomes: Counter[str]) -> None:
    async with AsyncClient(endpoint) as client:
        both = open_channel(
            endpoint,
            service_config={**SERVICE_CONFIG, "loadBalancingConfig": [{"round_robin": {}}]},
        )
        # the client's own, on both addresses in turn
        client._generation = generate_pb2_grpc.GenerationStub(both)
        for number in range(requests):
            try:
                async for _ in client.generate([1, 2, number], timeout=20.0):
                    pass
                outcomes["answered"] += 1
            except Unavailable:
                outcomes["unavailable"] += 1
        await both.close()
