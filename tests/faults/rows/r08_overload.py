"""Row 8: ten times the load a cell can serve, asked for in open loop: what is too much is refused
at once, with a hint.

Capacity is what a closed loop with as many clients as places gets. Then requests come at ten times
that rate, whether or not earlier ones were answered. Held against it: goodput, how quickly refusals
come, the wait of those taken in, the coordinator's memory, and how long a request takes once the
load is gone.

Refusals are timed by a client in a process of its own, since the one that floods is busy flooding.
"""

import asyncio
import json
import random
import sys
import time
from typing import Any

import grpc

from benchmarks.row import note
from dspark.wire.v1 import generate_pb2_grpc
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.synthetic_cell import Told, ask, closed_loop, message, synthetic_cell

PLACES, QUEUE, TOKENS = 8, 16, 64
TIMES, EACH_S = 10.0, 0.05  # of the capacity; between two questions of the prober
EXPECTED = (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)


def rows(args: Args) -> Rows:
    given = {"max_running": PLACES, "max_queued": QUEUE, "policy": "fixed:4"}
    with synthetic_cell(sequences=64, coordinator=given) as cell:
        value = asyncio.run(_measure(cell, 300.0 if args.long else 20.0))
    bars = {
        "goodput >= 95 % of capacity": value["goodput"] >= 0.95,
        "refusals p99 <= 10 ms, and no other errors": value["refusal_p99_ms"] <= 10.0
        and value["other_codes"] == 0,
        "waits bounded by the queue": value["first_token_p99_s"] <= value["first_token_bound_s"],
        "normal <= 5 s after": value["back_s"] <= 5.0,
    }
    yield statement("8", "ten times the load", value, bars)


async def _measure(cell: FaultCell, seconds: float) -> dict[str, Any]:
    async with grpc.aio.insecure_channel(cell.endpoint) as channel:
        await closed_loop(channel, PLACES, 2.0, TOKENS)
        alone = [(await ask(channel, message(TOKENS))).took_s for _ in range(5)]
        capacity = await closed_loop(channel, PLACES + 2, 8.0, TOKENS)
        before = cell.resources("coordinator/0")["rss"]
        note(f"capacity {capacity:.1f}/s")
        words = ("-m", "tests.faults.rows.r08_overload", cell.endpoint, str(seconds))
        prober = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE
        )
        asked = await _open_loop(channel, TIMES * capacity, seconds)
        ended = time.monotonic()
        back = 0.0
        while (await ask(channel, message(TOKENS))).took_s > 1.5 * max(alone):
            back = time.monotonic() - ended
        after = cell.resources("coordinator/0")["rss"]
    probed = [each / 1e3 for each in json.loads((await prober.communicate())[0])]
    good = [told for told in asked if told.code is grpc.StatusCode.OK]
    refused = [told for told in asked if told.code is grpc.StatusCode.RESOURCE_EXHAUSTED]
    return {
        "seconds": seconds,
        "capacity_per_s": round(capacity, 1),
        "offered": len(asked),
        "served": len(good),
        "refused": len(refused),
        "other_codes": len(asked) - len(good) - len(refused),
        "others": sorted({told.details[:80] for told in asked if told.code not in EXPECTED}),
        "goodput": round(sum(told.ended <= ended for told in good) / seconds / capacity, 3),
        "probed": len(probed),
        "refusal_p50_ms": round(1e3 * quantile(probed, 0.5), 2),
        "refusal_p99_ms": round(1e3 * quantile(probed, 0.99), 2),
        "refusal_p99_ms_at_the_flood": round(
            1e3 * quantile([told.took_s for told in refused], 0.99), 2
        ),
        "first_token_p99_s": round(quantile([told.first_s for told in good], 0.99), 3),
        "first_token_bound_s": round(1.5 * (QUEUE + PLACES) / capacity + max(alone), 3),
        "coordinator_rss_grew_mb": round((after - before) / 2**20, 1),
        "back_s": round(back, 2),
    }


async def _open_loop(channel: grpc.aio.Channel, rate: float, seconds: float) -> list[Told]:
    draw, running, told = random.Random(8), set[asyncio.Task[Told]](), list[Told]()
    began = due = time.monotonic()
    while due < began + seconds:
        await asyncio.sleep(max(due - time.monotonic(), 0.0))
        task = asyncio.create_task(ask(channel, message(TOKENS, seed=draw.randrange(1000))))
        running.add(task)
        task.add_done_callback(running.discard)
        task.add_done_callback(lambda done: told.append(done.result()))
        due += draw.expovariate(rate)
    await asyncio.gather(*running)
    return told


def _probe(endpoint: str, seconds: float) -> list[float]:
    """Asks now and then; milliseconds of each refusal."""
    took: list[float] = []
    with grpc.insecure_channel(endpoint) as channel:
        grpc.channel_ready_future(channel).result(20.0)
        stub = generate_pb2_grpc.GenerationStub(channel)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            began = time.monotonic()
            call = stub.Generate(message(TOKENS), timeout=20.0)
            try:
                next(iter(call))
                call.cancel()  # it was taken in
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    took.append(1e3 * (time.monotonic() - began))
            time.sleep(max(began + EACH_S - time.monotonic(), 0.0))
    return took


if __name__ == "__main__":  # the client in a process of its own
    print(json.dumps(_probe(sys.argv[1], float(sys.argv[2]))))
