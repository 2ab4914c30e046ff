"""Row 13: SIGTERM to every worker in turn, under load: health says so first, answers finish there
or move, none fails.

One round restarts all verifiers and drafters, one after the other, each when the one before is
connected again.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.row import Row, note
from faults.processes import FaultCell
from faults.rows.program import Args, Rows
from faults.streams import Stream, asking, judged, until, wave, whole

STREAMS, TOKENS = 8, 160
HEALTH_S = 0.2
RESTARTS, LONG_RESTARTS = 4, 20
SERVICES = {"verify": "dspark.wire.v1.Verify", "draft": "dspark.wire.v1.Draft"}


def rows(args: Args) -> Rows:
    restarts = LONG_RESTARTS if args.long else RESTARTS
    grace = {"grace_s": 4.0}
    with FaultCell(
        verifiers=2, drafters=2, coordinator={"max_handovers": 0}, verify=grace, draft=grace
    ) as cell:
        streams, flips, codes = asyncio.run(_roll(cell, restarts))
    value = {"restarts": restarts, **judged(streams), "killed": sum(code != 0 for code in codes)}
    value["longest_pause_s"] = round(max(gap for one in streams for gap in one.gaps), 2)
    value["not_serving_after_s"] = round(max(flips), 3)
    holds = value["right"] == len(streams) and max(flips) <= HEALTH_S and not value["killed"]
    bar = (
        "0 failed with no loss allowed, the target's ids or by its law, NOT_SERVING within "
        f"{HEALTH_S:g} s of SIGTERM"
    )
    yield Row("13", "a rolling restart fails nobody", value, bar, holds)


async def _roll(cell: FaultCell, restarts: int) -> tuple[list[Stream], list[float], list[int]]:
    flips, codes = list[float](), list[int]()
    names = [name for name in cell.children if not name.startswith("coordinator/")]
    async with asking(cell, wave(STREAMS, TOKENS)) as streams:
        for number, name in zip(range(restarts), itertools.cycle(names), strict=False):
            await asyncio.sleep(0.5)
            async with grpc.aio.insecure_channel(cell.children[name].endpoint) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                await _healthy(stub, name)
                told = time.monotonic()
                cell.terminate(name)
                await _flipped(stub, name)
                flips.append(time.monotonic() - told)
            codes.append(await asyncio.to_thread(cell.await_exit, name))
            await asyncio.to_thread(cell.restart, name)
            await until(lambda: whole(cell))
            note(f"{number + 1} restarts, {len(streams)} streams")
    return streams, flips, codes


async def _flipped(stub: health_pb2_grpc.HealthStub, name: str) -> None:
    while True:
        if not await _healthy(stub, name):
            return
        await asyncio.sleep(0.005)


async def _healthy(stub: health_pb2_grpc.HealthStub, name: str) -> bool:
    message = health_pb2.HealthCheckRequest(service=SERVICES[name.partition("/")[0]])
    try:
        said = await stub.Check(message, timeout=2.0)
    except grpc.aio.AioRpcError:
        return False
    return bool(said.status == health_pb2.HealthCheckResponse.SERVING)
