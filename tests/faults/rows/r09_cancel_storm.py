"""Row 9: one peer opens and cancels calls as fast as it can; others are answered as ever.

The peer opens 50 calls at a time on one connection and cancels them a millisecond later, from a
process of its own. An honest client on another connection asks one question after the other
meanwhile. `--streams`: what a connection may have open, by default as a listener beyond loopback
has it. The same storm blows at a bare server, whose handler returns nothing and which has nothing
else to do: what the library and this machine leave to be had.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import grpc

from benchmarks.row import note
from dspark.runtime.channel import sync_channel
from dspark.runtime.security import PUBLIC_STREAMS
from dspark.wire.v1 import generate_pb2
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement

STORM, BARE = "--storm", "--bare"
AT_ONCE = 50
STORM_S, MEASURED_S = 8.0, 5.0
METHOD = "/dspark.wire.v1.Generation/GetModelInfo"
SELF = (sys.executable, "-m", "tests.faults.rows.r09_cancel_storm")
LEAST_RATE, MOST_P99_MS = 10_000, 10.0


OPTIONS = {"streams": PUBLIC_STREAMS}


def rows(args: Args) -> Rows:
    streams = str(int(args.streams))
    with subprocess.Popen([*SELF, BARE, streams], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        bare = _weathered(server.stdout.readline().strip())
        server.terminate()
    note(f"bare: {bare}")
    with FaultCell(coordinator={"max_streams_per_connection": int(streams)}) as cell:
        calm = _honest(cell.endpoint)
        note(f"calm: {calm}")
        hurt = _weathered(cell.endpoint)
        with cell.client() as client:
            answer = client.complete([1, 2, 3], max_tokens=8, timeout=30)
        served = len(answer.token_ids) == 8
    value = {
        "streams_per_connection": int(streams),
        **hurt,
        "calm": calm,
        "bare": {key: bare[key] for key in ("cancels_per_s", "p50_ms", "p99_ms")},
        "generates_after": served,
    }
    bars = {
        "0 failures": served and not hurt["failed"],
        f"p99 <= {MOST_P99_MS:g} ms": hurt["p99_ms"] <= MOST_P99_MS,
        f"at >= {LEAST_RATE} cancels/s": hurt["cancels_per_s"] >= LEAST_RATE,
    }
    yield statement("9", "a storm of cancels by one peer harms nobody else", value, bars)


def _weathered(endpoint: str) -> dict[str, Any]:
    """What honest calls saw in a storm, and how hard it blew."""
    with subprocess.Popen([*SELF, STORM, endpoint], stdout=subprocess.PIPE) as peer:
        time.sleep(1.5)  # until it blows
        hurt = _honest(endpoint)
        said, _ = peer.communicate(timeout=60)
    return {**json.loads(said), **hurt}


async def _serve_nothing(streams: int) -> None:
    """A server of the same library that answers the method with no bytes; prints its endpoint."""

    async def nothing(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return b""

    service, _, method = METHOD[1:].partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(nothing)}
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", streams)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


def _honest(endpoint: str) -> dict[str, Any]:
    """Sequential calls for a while: how many, how many failed, and how long they took."""
    took: list[float] = []
    failed: Counter[str] = Counter()
    with sync_channel(endpoint) as channel:
        ask = channel.unary_unary(METHOD, generate_pb2.GetModelInfoRequest.SerializeToString)
        ask(generate_pb2.GetModelInfoRequest(), timeout=10)
        ends = time.monotonic() + MEASURED_S
        while time.monotonic() < ends:
            began = time.perf_counter()
            try:
                ask(generate_pb2.GetModelInfoRequest(), timeout=5)
            except grpc.RpcError as error:
                failed[error.code().name] += 1
            took.append(1e3 * (time.perf_counter() - began))
    found = {f"p{share}_ms": round(quantile(took, share / 100), 2) for share in (50, 99)}
    return {"calls": len(took), "failed": failed.total(), "statuses": dict(failed), **found}


def _storm(endpoint: str) -> dict[str, float]:
    cancelled = 0
    began = time.monotonic()
    with sync_channel(endpoint) as channel:
        ask = channel.unary_unary(METHOD)
        while time.monotonic() - began < STORM_S:
            calls = [ask.future(b"") for _ in range(AT_ONCE)]
            time.sleep(0.001)
            for call in calls:
                call.cancel()
            cancelled += len(calls)
    return {"cancels_per_s": round(cancelled / (time.monotonic() - began))}


if __name__ == "__main__":
    if sys.argv[1] == STORM:  # the peer
        print(json.dumps(_storm(sys.argv[2])))
    elif sys.argv[1] == BARE:
        asyncio.run(_serve_nothing(int(sys.argv[2])))
