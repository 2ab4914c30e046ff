"""Row 21: SIGKILL of the coordinator, again and again, under running streams that go on from its
journal.

Every kill comes at a moment drawn from a seed, the coordinator is started again at its address, and
the client library goes on with what each stream lacks. Ratio rules run without a seed: what was
shown can only be known from the journal. An offset that does not follow from the one before ends
the program.
"""

import asyncio
import tempfile

from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.streams import ALL_PARAMS, PATIENT, hurt, judged, wave

STREAMS, TOKENS = 8, 200
KILLS, LONG_KILLS = 3, 30
BAR_S, RESUME_S = 5.0, 60.0


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    with (
        tempfile.TemporaryDirectory(prefix="dspark-journal-") as folder,
        FaultCell(coordinator={**PATIENT, "journal": folder, "journal_segment_mb": 1}) as cell,
    ):
        asked = wave(STREAMS, TOKENS, resume_s=RESUME_S)
        work = hurt(cell, asked, cell.replace, ["coordinator/0"], kills)
        streams, silences = asyncio.run(work)
    stalls = silences["coordinator"]
    resumed = [
        sum(one.resumed > 0 for one in streams if one.options.items() >= params.items())
        for params in ALL_PARAMS
    ]
    value = {"kills": kills, **judged(streams), "resumed_by_law": resumed}
    value |= {f"stall_p{p}_s": round(quantile(stalls, p / 100), 2) for p in (50, 99)}
    bars = {
        "every stream ends, nothing shown is lost or changed": value["right"] == len(streams)
        and all(resumed),
        f"p99 of the stalls <= {BAR_S:g} s": value["stall_p99_s"] <= BAR_S,
    }
    yield statement("21", "a killed coordinator costs a pause", value, bars)
