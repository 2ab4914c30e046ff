"""Row 5: SIGSTOP. A hung verifier is let go and its sequences go on elsewhere; a hung drafter costs
its drafts.

`verifier_s` is the silence of the streams around a stop, until their first token from elsewhere.
Then the process goes on (its late words must change nothing) and is taken in again. In the end
every processor is kept busy for a while, and nobody may be let go for being slow.
"""

import asyncio
import os
import subprocess
import sys
import time

from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.streams import PATIENT, Stream, asking, hurt, judged, wave
from tests.faults.synthetic_cell import counter

STREAMS, TOKENS = 6, 300
BAR_S = 3.5  # with a prefill
STOPPED_S = 6.0
STOPS, LONG_STOPS = 4, 20
BUSY_S, LONG_BUSY_S = 6.0, 3600.0


def rows(args: Args) -> Rows:
    stops, busy_s = (LONG_STOPS, LONG_BUSY_S) if args.long else (STOPS, BUSY_S)
    with FaultCell(verifiers=2, drafters=2, coordinator=PATIENT) as cell:

        def stop(name: str) -> None:
            cell.freeze(name)
            time.sleep(STOPPED_S)
            cell.thaw(name)

        work = hurt(cell, wave(STREAMS, TOKENS), stop, cell.workers, stops)
        streams, silences = asyncio.run(work)
        before = counter(cell, "dspark_worker_losses_total")
        streams += asyncio.run(_busy(cell, busy_s))
        false = counter(cell, "dspark_worker_losses_total") - before
    verifier_s, drafter_s = (quantile(silences[role], 0.99) for role in ("verify", "draft"))
    value = {
        "stops": stops,
        **judged(streams),
        "busy_s": busy_s,
        "let_go_under_load": false,
        "verifier_p99_s": round(verifier_s, 2),
        "drafter_p99_s": round(drafter_s, 2),
    }
    bars = {
        "the target's ids, or by its law": value["right"] == len(streams),
        f"silence p99 <= {BAR_S:g} s": verifier_s <= BAR_S,
        "0 let go under full load": not false,
    }
    yield statement("5", "hung peers are let go, busy ones are not", value, bars)


async def _busy(cell: FaultCell, seconds: float) -> list[Stream]:
    """Every processor has more to do than it can."""
    burners = await asyncio.to_thread(_burners)
    try:
        async with asking(cell, wave(STREAMS, TOKENS)) as streams:
            await asyncio.sleep(seconds)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    return streams


def _burners() -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(2 * (os.cpu_count() or 1))
    ]
