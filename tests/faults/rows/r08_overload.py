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
import math
import sys
import time
from typing import Any

from benchmarks.row import note
from dspark.client import Client, Overloaded
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.synthetic_cell import loaded, options, prompt, synthetic_cell

PLACES, QUEUE, TOKENS = 8, 16, 64
TIMES, EACH_S = 10.0, 0.05  # of the capacity; between two questions of the prober
BACK_S = 5.0  # until an answer takes as long as before the flood


def rows(args: Args) -> Rows:
    given = {"max_running": PLACES, "max_queued": QUEUE, "policy": "fixed:4"}
    with synthetic_cell(sequences=64, coordinator=given) as cell:
        value = asyncio.run(_measure(cell, 300.0 if args.long else 20.0))
    bars = {
        "goodput >= 95 % of capacity": value["goodput"] >= 0.95,
        "refusals p99 <= 10 ms, and no other errors": value["refusal_p99_ms"] <= 10.0
        and value["other_codes"] == 0,
        "waits bounded by the queue": value["first_token_p99_s"] <= value["first_token_bound_s"],
        f"normal <= {BACK_S:g} s after": value["back_s"] <= BACK_S,
    }
    yield statement("8", "ten times the load", value, bars)


async def _measure(cell: FaultCell, seconds: float) -> dict[str, Any]:
    closed = await loaded(cell, TOKENS, concurrency=PLACES + 2, warmup=PLACES + 2, duration_s=8.0)
    capacity = sum(not each.error for each in closed.answers) / 8.0
    longest = await _alone(cell, 5)
    assert math.isfinite(longest), "refused before the flood"
    before = cell.resources("coordinator/0")["rss"]
    note(f"capacity {capacity:.1f}/s")
    words = ("-m", "tests.faults.rows.r08_overload", cell.endpoint, str(seconds))
    prober = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdout=asyncio.subprocess.PIPE
    )
    rate = TIMES * capacity
    flood = await loaded(cell, TOKENS, rate=rate, requests=round(rate * seconds))
    ended, back = time.monotonic(), 0.0
    while back <= BACK_S and await _alone(cell, 1) > 1.5 * longest:
        back = time.monotonic() - ended
    after = cell.resources("coordinator/0")["rss"]
    probed = [each / 1e3 for each in json.loads((await prober.communicate())[0])]
    asked = flood.answers
    good = [each for each in asked if not each.error]
    refused = [each.ended - each.sent for each in asked if each.error == Overloaded.__name__]
    return {
        "seconds": seconds,
        "capacity_per_s": round(capacity, 1),
        "offered": len(asked),
        "served": len(good),
        "refused": len(refused),
        "other_codes": len(asked) - len(good) - len(refused),
        "others": sorted({each.error for each in asked} - {"", Overloaded.__name__}),
        "goodput": round(sum(each.ended <= flood.closed for each in good) / seconds / capacity, 3),
        "probed": len(probed),
        "refusal_p50_ms": round(1e3 * quantile(probed, 0.5), 2),
        "refusal_p99_ms": round(1e3 * quantile(probed, 0.99), 2),
        "refusal_p99_ms_at_the_flood": round(1e3 * quantile(refused, 0.99), 2),
        "first_token_p99_s": round(quantile([each.times[0] - each.sent for each in good], 0.99), 3),
        "first_token_bound_s": round(1.5 * (QUEUE + PLACES) / capacity + longest, 3),
        "coordinator_rss_grew_mb": round((after - before) / 2**20, 1),
        "back_s": round(back, 2),
    }


async def _alone(cell: FaultCell, answers: int) -> float:
    """Seconds of the longest of so many, one after the other; inf where one is not answered."""
    told = await loaded(cell, TOKENS, concurrency=1, requests=answers)
    return max(math.inf if each.error else each.ended - each.sent for each in told.answers)


def _probe(endpoint: str, seconds: float) -> list[float]:
    """Asks now and then; milliseconds of each refusal."""
    took: list[float] = []
    with Client(endpoint) as client:
        client.model_info()  # the connection is there
        ends = time.monotonic() + seconds
        while (began := time.monotonic()) < ends:
            try:
                with client.generate(prompt(0), timeout=20.0, **options(TOKENS)) as stream:
                    next(stream)  # it was taken in
            except Overloaded:
                took.append(1e3 * (time.monotonic() - began))
            time.sleep(max(began + EACH_S - time.monotonic(), 0.0))
    return took


if __name__ == "__main__":  # the client in a process of its own
    print(json.dumps(_probe(sys.argv[1], float(sys.argv[2]))))
