"""Row 33: what health says, asked every 20 ms, through load, the death of the only verifier, its
return, and a drain.

Clients ask for `dspark.wire.v1.Generation`: SERVING while requests are taken in, NOT_SERVING within
100 ms of the verifier's SIGKILL and of SIGTERM, and never the wrong one in between. The process's
own name says that it lives.
"""

import asyncio
import math
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.synthetic_cell import loaded, synthetic_cell
from tests.waiting import until

SERVING = health_pb2.HealthCheckResponse.SERVING
EACH_S, BAR_MS = 0.02, 100.0
GENERATION = "dspark.wire.v1.Generation"

Looks = list[tuple[float, bool]]  # when health answered, and whether it said SERVING


def rows(args: Args) -> Rows:
    with synthetic_cell(sequences=64, coordinator={"max_running": 16, "max_queued": 16}) as cell:
        value = asyncio.run(_story(cell))
    bars = {
        f"NOT_SERVING <= {BAR_MS:g} ms after death and SIGTERM": max(
            value["death_ms"], value["drain_ms"]
        )
        <= BAR_MS,
        "SERVING throughout load, and again": value["answered_under_load"] > 0
        and not value["false_under_load"],
        "alive all along": value["alive_throughout"],
        "drained streams whole": value["drained_streams_whole"],
    }
    yield statement("33", "health tells the truth", value, bars)


async def _story(cell: FaultCell) -> dict[str, float | bool]:
    looks: dict[str, Looks] = {GENERATION: [], "": []}
    ended = asyncio.Event()
    async with grpc.aio.insecure_channel(cell.endpoint) as channel:
        watching = [
            asyncio.create_task(_watch(channel, name, looks[name], ended)) for name in looks
        ]
        load = await loaded(cell, 64, concurrency=24, duration_s=3.0)
        under_load = list(looks[GENERATION])
        killed = time.perf_counter()
        cell.kill("verify/0")
        await asyncio.sleep(1.0)
        death = _refused(looks[GENERATION], killed)
        await asyncio.to_thread(cell.restart, "verify/0")
        await until(lambda: looks[GENERATION][-1][1], 10.0)
        running = asyncio.create_task(loaded(cell, 200, concurrency=8, requests=8))
        await asyncio.sleep(0.3)
        told = time.perf_counter()
        cell.terminate("coordinator/0")
        answers = (await running).answers
        drain = _refused(looks[GENERATION], told)
        ended.set()
        await asyncio.gather(*watching)
    lived = [serving for came, serving in looks[""] if came < told]
    return {
        "looks": len(looks[GENERATION]),
        "death_ms": round(1e3 * (death - killed), 1),
        "drain_ms": round(1e3 * (drain - told), 1),
        "answered_under_load": sum(not each.error for each in load.answers),
        "false_under_load": sum(not serving for _, serving in under_load),
        "alive_throughout": all(lived) and len(lived) > 50,
        "drained_streams_whole": all(
            each.tokens == 200 and each.sent < told < each.ended for each in answers
        ),
    }


async def _watch(channel: grpc.aio.Channel, name: str, looks: Looks, ended: asyncio.Event) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    while not ended.is_set():
        asked = time.perf_counter()
        try:
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=2.0)
            serving = reply.status == SERVING
        except grpc.aio.AioRpcError:
            serving = False
        looks.append((time.perf_counter(), serving))
        await asyncio.sleep(max(asked + EACH_S - time.perf_counter(), 0.0))


def _refused(looks: Looks, after: float) -> float:
    """When health first said after that moment that nothing is served; inf if never."""
    return min((came for came, serving in looks if came >= after and not serving), default=math.inf)
