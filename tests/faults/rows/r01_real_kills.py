"""Row 1, real processes: SIGKILL of verifiers and drafters, again and again, under running streams.

Kills come at moments drawn from a seed; the dead process is started again at its address. Streams
are asked for in waves, so that kills hit prefills, first and last tokens too. A stall is the
silence of a stream around a kill.
"""

import asyncio

from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.streams import PATIENT, hurt, judged, wave

STREAMS, TOKENS = 8, 160
KILLS, LONG_KILLS = 6, 200
STALL_S = 1.5


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    with FaultCell(verifiers=2, drafters=2, coordinator=PATIENT) as cell:
        work = hurt(cell, wave(STREAMS, TOKENS), cell.replace, cell.workers, kills)
        streams, silences = asyncio.run(work)
        settled = cell.settled(30.0)
    stalls = [*silences["verify"], *silences["draft"]]
    value = {"kills": kills, **judged(streams), "hit": len(stalls), "all_freed": settled}
    value |= {f"stall_p{p}_s": round(quantile(stalls, p / 100), 3) for p in (50, 99)}
    bars = {
        "every stream ends with the target's ids, or by its law": value["right"] == len(streams),
        f"p99 of the stalls <= {STALL_S:g} s": value["stall_p99_s"] <= STALL_S,
        "all freed": settled,
    }
    yield statement("1", "killed workers cost a pause", value, bars)
