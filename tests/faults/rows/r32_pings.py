"""Row 32: a peer that asks every 10 s whether a silent server is there is kept; one that asks every
second is cut.

Both wait on a stream that says nothing for a minute, as a long prefill does. Processes of the cell
watch each other more closely than strangers may: on a worker's listener a ping a second is welcome.
"""

import asyncio
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement

SILENCE_S = 62.0
CUT_WITHIN_S = 30.0


def rows(args: Args) -> Rows:
    with FaultCell() as cell:
        value = asyncio.run(_watch(cell))
    kept = value["each_10_s"] is None and value["worker_each_1_s"] is None
    cut = value["each_1_s"] or {"after_s": SILENCE_S, "calm": False}
    bars = {
        "0 false cuts": kept,
        f"cut with ENHANCE_YOUR_CALM within {CUT_WITHIN_S:g} s": cut["after_s"] <= CUT_WITHIN_S
        and cut["calm"],
    }
    name = "pings every 10 s through a silent minute are kept, pings every second are cut"
    yield statement("32", name, value, bars)


async def _watch(cell: FaultCell) -> dict[str, dict[str, Any] | None]:
    asked = {
        "each_10_s": (cell.endpoint, 10_000),
        "each_1_s": (cell.endpoint, 1_000),
        "worker_each_1_s": (cell.children["verify/0"].endpoint, 1_000),
    }
    found = await asyncio.gather(
        *(_silence(endpoint, each_ms) for endpoint, each_ms in asked.values())
    )
    return dict(zip(asked, found, strict=True))


async def _silence(endpoint: str, each_ms: int) -> dict[str, Any] | None:
    """How a stream that has nothing to say was cut; None if it was open at the end."""
    options = [
        ("grpc.keepalive_time_ms", each_ms),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    began = time.monotonic()
    async with grpc.aio.insecure_channel(endpoint, options=options) as channel:
        call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        try:
            async with asyncio.timeout(SILENCE_S):
                async for _ in call:
                    pass
        except TimeoutError:
            return None
        except grpc.aio.AioRpcError as error:
            said = error.details() or ""
        else:
            said = "the stream ended"
    # how the core spells ENHANCE_YOUR_CALM
    calm = "too many pings" in said.lower().replace("_", " ")
    return {"after_s": round(time.monotonic() - began, 1), "calm": calm, "said": said[:120]}
