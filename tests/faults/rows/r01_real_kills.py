"""Row 1, real processes: SIGKILL of verifiers and drafters, again and again, under running streams.

Kills come at moments drawn from a seed; the dead process is started again at its address. Streams
are asked for in waves, so that kills hit prefills, first and last tokens too. A stall is the
silence of a stream around a kill.
"""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks.row import Row, note
from faults.processes import FaultCell
from faults.rows.program import Args, Rows, quantile
from faults.streams import PATIENT, Stream, asking, judged, wave, whole

STREAMS, TOKENS = 8, 160
KILLS, LONG_KILLS = 6, 200
STALL_S = 1.5


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    with FaultCell(verifiers=2, drafters=2, coordinator=PATIENT) as cell:
        streams, at = asyncio.run(_storm(cell, kills))
        settled = cell.settled(30.0)
    stalls = [one.silence(when) for when in at for one in streams if one.lives(when)]
    value = {"kills": kills, **judged(streams), "hit": len(stalls), "all_freed": settled}
    value |= {
        "stall_p50_s": round(quantile(stalls, 0.5), 3),
        "stall_p99_s": round(quantile(stalls, 0.99), 3),
    }
    holds = (
        value["right"] == len(streams)
        and value["stall_p99_s"] <= STALL_S
        and settled
        and bool(stalls)
    )
    bar = (
        "every stream ends with the target's ids, or by its law; p99 of the stalls <= "
        f"{STALL_S:g} s; all freed"
    )
    yield Row("1", "killed workers cost a pause", value, bar, holds)


async def _storm(cell: FaultCell, kills: int) -> tuple[list[Stream], list[float]]:
    draw, at = random.Random(1), list[float]()
    names = [name for name in cell.children if not name.startswith("coordinator/")]
    async with asking(cell, wave(STREAMS, TOKENS)) as streams:
        for number in range(kills):
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            victim = draw.choice(names)
            at.append(time.monotonic())
            await asyncio.to_thread(cell.kill, victim)
            await asyncio.to_thread(cell.restart, victim)
            await whole(cell)
            note(f"{number + 1} kills, {len(streams)} streams")
    return streams, at
