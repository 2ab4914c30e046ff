"""Row 30: steady load with cancels and a kill every few minutes; memory, files, threads and pages
do not grow.

Thirty minutes on a small machine, six hours where there is time: `--minutes`. Samples each 15 s;
memory grows by Theil-Sen's slope over the second half, and the bar is held against the upper end of
its interval. A run of few minutes misses it: what is kept of answers, for ten minutes, and after
restarts, of which some twenty fill it, grows at first. So does a verifier's cache, whose memory is
taken where tokens are first written: it has few slots here, full after a minute.
"""

import asyncio
import contextlib
import itertools
import random
import time
from dataclasses import dataclass, field

import psutil
from scipy.stats import theilslopes

from benchmarks.row import note
from dspark.client import AsyncClient
from tests.faults import pair
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.streams import ALL_PARAMS, Stream, judged

MINUTES = 30.0
EACH_S = 15.0
KILL_EACH_S = 300.0
STREAMS = 3  # at one time: about 70 % of what two processors give this pair
CANCELLED, LONGEST_S = 0.05, 0.3  # share of the streams, and until their clients leave
GROWTH_MB_PER_MIN = 0.5
# Connections that a process first needs late, as for rows in bulk when a drafter has died.
LATE = 2
STUCK_S = 120.0
KV_TOKENS = 4096  # of each verifier
KILLED = ("verify/0", "draft/0", "verify/1")


@dataclass
class Soak:
    ended: int = 0
    cancelled: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    samples: dict[str, list[tuple[float, dict[str, int]]]] = field(default_factory=dict)
    kills: int = 0


async def one(client: AsyncClient, draw: random.Random, soak: Soak) -> None:
    prompt, params = pair.prompt(draw.randrange(32), draw.randint(4, 40)), draw.choice(ALL_PARAMS)
    stream = Stream(prompt, {"max_tokens": 64, "timeout": STUCK_S, **params})
    leaves_s = draw.uniform(0.0, LONGEST_S) if draw.random() < CANCELLED else None
    try:
        async with asyncio.timeout(leaves_s):
            await stream.run(client)
    except TimeoutError:
        soak.cancelled += 1
        return
    told = judged([stream])
    soak.ended += stream.error is None
    soak.failed += told["errors"]
    soak.wrong += told["wrong"]


async def run(cell: FaultCell, minutes: float, soak: Soak) -> None:
    until = time.monotonic() + 60.0 * minutes

    async def stream(number: int) -> None:
        draw = random.Random(f"soak/{number}")
        async with AsyncClient(cell.endpoint) as client:
            while time.monotonic() < until:
                await one(client, draw, soak)
                await asyncio.sleep(draw.expovariate(4.0))

    async def sample() -> None:
        while True:
            for name in cell.children:
                with contextlib.suppress(psutil.Error):  # it is being killed
                    held = cell.resources(name)
                    soak.samples.setdefault(f"{name}#{cell.children[name].pid}", []).append(
                        (time.monotonic(), held)
                    )
            await asyncio.sleep(EACH_S)

    async def kill() -> None:
        for name in itertools.cycle(KILLED):
            await asyncio.sleep(min(KILL_EACH_S, 10.0 * minutes))
            await asyncio.to_thread(cell.replace, name)
            soak.kills += 1
            note(f"killed {name}; {soak.ended} ended, {len(soak.failed)} failed")

    async with asyncio.TaskGroup() as group:  # where one of them fails all end
        beside = [group.create_task(sample()), group.create_task(kill())]
        await asyncio.gather(*(stream(number) for number in range(STREAMS)))
        for task in beside:
            task.cancel()


def slope(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Theil-Sen slope per minute, and the upper end of its interval of 95 %."""
    at, values = zip(*points, strict=True)
    middle, _, _, upper = theilslopes(values, at, 0.95)
    return 60.0 * float(middle), 60.0 * float(upper)


def more(samples: list[tuple[float, dict[str, int]]], what: str) -> int:
    """By how much the fewest of the last quarter are above the most of the first half. A slope
    would take a connection that a killed peer lacks for a while for growth."""
    held = [each[what] for _, each in samples]
    return min(held[3 * len(held) // 4 :]) - max(held[: len(held) // 2])


OPTIONS = {"minutes": MINUTES}


def rows(args: Args) -> Rows:
    minutes: float = args.minutes
    soak = Soak()
    verify, coordinator = {"kv_tokens": KV_TOKENS}, {"max_handovers": 100}
    with FaultCell(verifiers=2, verify=verify, coordinator=coordinator) as cell:
        asyncio.run(run(cell, minutes, soak))
        settled = cell.settled(30.0)
    growth: dict[str, dict[str, float]] = {}
    for who, samples in soak.samples.items():
        half = samples[len(samples) // 2 :]
        if len(half) * EACH_S < 120.0:
            continue
        middle, upper = slope([(at, held["rss"] / 2**20) for at, held in half])
        growth[who] = {
            "mb_per_min": round(middle, 3),
            "at_most": round(upper, 3),
            "fds": more(samples, "fds"),
            "threads": more(samples, "threads"),
        }
    worst = max((each["at_most"] for each in growth.values()), default=0.0)
    leaks = [who for who, each in growth.items() if max(each["fds"], each["threads"]) > LATE]
    value = {
        "minutes": minutes,
        "ended": soak.ended,
        "cancelled": soak.cancelled,
        "kills": soak.kills,
        "failed": len(soak.failed),
        "why": soak.failed[:3],
        "wrong": soak.wrong[:3],
        "engine": "pair",
        "worst_at_most": worst,
        "growth": growth,
        "leaking_files_or_threads": leaks,
        "all_freed": settled,
    }
    bars = {
        f"resident <= {GROWTH_MB_PER_MIN:g} MB/min at most": worst <= GROWTH_MB_PER_MIN,
        "files and threads flat": not leaks,
        "0 stuck, 0 failed, 0 wrong": not soak.failed and not soak.wrong,
        "all freed": settled,
        "answers, kills and processes to measure": soak.ended and soak.kills and growth,
    }
    yield statement("30", "soak with cancels and kills", value, bars)
