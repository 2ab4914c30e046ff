"""Row 14: routes between processes die for five seconds, both ways or one; whoever comes back late
changes nothing.

Real processes, each worker in a network namespace whose cable is cut, so that packets are lost;
where that is not allowed (no root) or with `--proxies 1`, behind TCP proxies that keep connections
open and pass nothing. A worker is cut off from the coordinator and its peers, one after the other,
in a direction drawn from a seed: 4 seconds (in the long form 10) after all serve again. A frame is
a message to a client; each is checked against the offset before it and, in the end, against the
target alone.
"""

import asyncio
import random
import time
from collections import Counter

from tests.faults import namespaces
from tests.faults.processes import Between, FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.streams import PATIENT, hurt, judged, wave
from tests.faults.synthetic_cell import counter
from tests.faults.tcp_proxy import Way

STREAMS, LONG_STREAMS, TOKENS = 8, 32, 200
CUT_S, EACH_S, LONG_EACH_S = 5.0, 9.0, 15.0
QUICK_MINUTES, LONG_MINUTES = 0.5, 60.0
LONG_FRAMES = 200_000
LEAST_BITE_S = 1.0  # pause of a stream whose verifier is cut off: it is moved when that is noticed
# a worker hears of a dead session by its own keepalive, in 13 s; a lease would take 150
FREED_S = 30.0


OPTIONS = {"minutes": None, "proxies": 0}


def rows(args: Args) -> Rows:
    kernel = not args.proxies and namespaces.enter("tests.faults.rows")
    lasts_s = 60.0 * (args.minutes or (LONG_MINUTES if args.long else QUICK_MINUTES))
    between: Between = "kernel" if kernel else "tcp"
    cuts, draw = Counter[str](), random.Random(14)
    streams, each_s = (LONG_STREAMS, LONG_EACH_S) if args.long else (STREAMS, EACH_S)
    with FaultCell(verifiers=2, drafters=2, between=between, coordinator=PATIENT) as cell:

        def cut(name: str) -> None:
            ways = draw.choice([(Way.IN,), (Way.OUT,), tuple(Way)])
            way = "both ways" if len(ways) > 1 else ways[0].value
            cuts[f"{name.partition('/')[0]} {way}"] += 1
            cell.proxies[name].blackhole(*ways)
            time.sleep(CUT_S)
            cell.proxies[name].heal()

        asked, times = wave(streams, TOKENS), int(lasts_s // each_s)
        work = hurt(cell, asked, cut, cell.workers, times, (each_s - CUT_S, each_s - CUT_S))
        began = time.monotonic()
        ended, _ = asyncio.run(work)
        ended_at = time.monotonic()
        settled = cell.settled(FREED_S, everybody=True)
        freed_s, held = time.monotonic() - ended_at, cell.held(everybody=True)
        dropped = counter(cell, "dspark_dropped_total")
    longest_s = max((stream.longest_gap_s for stream in ended), default=0.0)
    frames = sum(len(stream.times) for stream in ended)
    value = {
        "routes": "network namespaces" if kernel else "TCP proxies",
        "minutes": round((ended_at - began) / 60, 1),
        "cuts": dict(cuts),
        **judged(ended),
        "frames": frames,
        # stale: what came by connections that were not given up
        "dropped_at_the_coordinator": dropped,
        "longest_pause_s": round(longest_s, 2),
        "held": held,
        "everything_freed": settled,
        "freed_s": round(freed_s, 1),
    }
    bars = {
        "no token twice, none skipped, the target's ids or by its law": value["right"]
        == len(ended),
        "cuts were felt": cuts and longest_s > LEAST_BITE_S,
        "all freed": settled,
    }
    if args.long:
        bars[f"in {LONG_FRAMES:,} frames"] = frames >= LONG_FRAMES
    yield statement("14", "routes that die for five seconds", value, bars)
