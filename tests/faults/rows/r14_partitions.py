"""Row 14: routes between processes die for five seconds, both ways or one; whoever comes back late changes nothing.

Real processes behind TCP proxies that keep connections open and pass nothing, which needs no privileges: a worker is
cut off from the coordinator and its peers, every `EACH_S` seconds another one, in a direction drawn from a seed.
A frame is a message to a client; each is checked against the offset before it and, in the end, against a calm run.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time

from benchmarks.failing import Stream, fresh, same, undisturbed
from benchmarks.row import Row, note
from benchmarks.synthetic_cell import FLAT
from dspark.client import AsyncClient
from faults.processes import FaultCell
from faults.rows.program import arguments
from faults.tcp_proxy import Way

STREAMS, TOKENS = 16, 600
CUT_S, EACH_S = 5.0, 9.0
QUICK_S, LONG_S = 30.0, 3600.0
LONG_FRAMES = 1_000_000


def main() -> int:
    args = arguments(__doc__)
    lasts_s = LONG_S if args.long else QUICK_S
    own = {"engine": "synthetic", "synthetic": FLAT}
    patient = {"max_handovers": 1000, "flap_limit": 0, "verifier_wait_s": 60}
    wave = [
        Stream([n + 2, 3, 5], {"max_tokens": TOKENS, "seed": n, "policy": "fixed:3", "temperature": 0.0})
        for n in range(STREAMS)
    ]
    with FaultCell(
        verifiers=2,
        drafters=2,
        between="tcp",
        coordinator=patient,
        verify={**own, "kv_tokens": 1 << 20},
        draft={**own, "context_tokens": 1 << 20},
    ) as cell:
        calm = asyncio.run(undisturbed(cell, wave))
        waves, cuts = asyncio.run(_storm(cell, wave, lasts_s))
        settled = cell.settled()
    ended = [stream for each in waves for stream in each]
    good = sum(same(each, calm) for each in waves)
    frames = sum(len(stream.times) for stream in ended)
    value = {
        "cuts": cuts,
        "streams": len(ended),
        "same_ids": good,
        "frames": frames,
        "errors": sorted({stream.error for stream in ended if stream.error}),
        "longest_pause_s": round(max(gap for stream in ended for gap in stream.gaps), 2),
        "everything_freed": settled,
    }
    bar = "no token twice, none skipped, the same ids"
    if args.long:
        bar += f", in {LONG_FRAMES:,} frames"
    holds = good == len(ended) and settled and (not args.long or frames >= LONG_FRAMES)
    return Row(14, "routes that die for five seconds", value, bar, holds).show(as_json=args.json)


async def _storm(cell: FaultCell, wave: list[Stream], lasts_s: float) -> tuple[list[list[Stream]], dict[str, int]]:
    waves: list[list[Stream]] = []
    cuts: dict[str, int] = {}
    ends = time.monotonic() + lasts_s
    draw = random.Random(14)

    async def keep_asking(client: AsyncClient) -> None:
        while time.monotonic() < ends:
            waves.append(fresh(wave))
            await asyncio.gather(*(stream.run(client) for stream in waves[-1]))

    async with AsyncClient(cell.endpoint) as client:
        asking = asyncio.create_task(keep_asking(client))
        while time.monotonic() + EACH_S <= ends:
            await asyncio.sleep(EACH_S - CUT_S)
            name = draw.choice(sorted(cell.proxies))
            ways = draw.choice([(Way.IN,), (Way.OUT,), tuple(Way)])
            kind = f"{name.partition('/')[0]} {'both ways' if len(ways) > 1 else ways[0].value}"
            cuts[kind] = cuts.get(kind, 0) + 1
            note(kind)
            cell.proxies[name].blackhole(*ways)
            await asyncio.sleep(CUT_S)
            cell.proxies[name].heal()
        await asking
    return waves, cuts


if __name__ == "__main__":
    sys.exit(main())
