"""Row 21: SIGKILL of the coordinator, again and again, under running streams that go on from its
journal.

Every kill comes at a moment drawn from a seed, the coordinator is started again at its address, and
the client library goes on with what each stream lacks. Ratio rules run without a seed: what was
shown can only be known from the journal. An offset that does not follow from the one before ends
the program.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time

from benchmarks.row import note
from faults.processes import FaultCell
from faults.rows.program import Args, Rows, quantile, statement
from faults.streams import ALL_PARAMS, PATIENT, Stream, asking, judged, wave
from tests.waiting import until

STREAMS, TOKENS = 8, 200
KILLS, LONG_KILLS = 3, 30
BAR_S, RESUME_S = 5.0, 60.0


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    with (
        tempfile.TemporaryDirectory(prefix="dspark-journal-") as folder,
        FaultCell(coordinator={**PATIENT, "journal": folder, "journal_segment_mb": 1}) as cell,
    ):
        streams, back = asyncio.run(_storm(cell, kills))
    resumed = [
        sum(one.resumed > 0 for one in streams if one.options.items() >= params.items())
        for params in ALL_PARAMS
    ]
    value = {"kills": kills, **judged(streams), "resumed_by_law": resumed}
    value |= {f"back_p{p}_s": round(quantile(back, p / 100), 2) for p in (50, 99)}
    bars = {
        "every stream ends, nothing shown is lost or changed": value["right"] == len(streams)
        and all(resumed),
        f"the next token within {BAR_S:g} s of the kill": value["back_p99_s"] <= BAR_S,
    }
    yield statement("21", "a killed coordinator costs a pause", value, bars)


async def _storm(cell: FaultCell, kills: int) -> tuple[list[Stream], list[float]]:
    """Streams, and seconds from each kill to the next token of the last stream that lived through
    it."""
    draw, back = random.Random(21), list[float]()
    async with asking(cell, wave(STREAMS, TOKENS, resume_s=RESUME_S)) as streams:
        for number in range(kills):
            await asyncio.sleep(draw.uniform(0.1, 1.5))
            await until(lambda: any(one.times and not one.over for one in streams))
            hit, killed = [one for one in streams if one.times and not one.over], time.monotonic()
            await asyncio.to_thread(cell.kill, "coordinator/0")
            await asyncio.to_thread(cell.restart, "coordinator/0")
            await until(
                lambda hit=hit, at=killed: all(one.over or one.times[-1] > at for one in hit)
            )
            back += [
                min(when for when in one.times if when > killed) - killed
                for one in hit
                if one.times[-1] > killed
            ]
            note(f"{number + 1} kills, {len(streams)} streams")
    return streams, back
