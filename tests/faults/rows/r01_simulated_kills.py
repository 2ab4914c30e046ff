"""Row 1, simulated: a verifier is killed at any moment, of two; every stream goes on as the target,
or its law, says.

Real engines in simulated time, requests under all laws. Kills fall anywhere: before the first
token, inside a round, between a verdict and its commit, on the last token. Each story begins a few
requests, kills the verifier that holds most of them, and starts it again.
"""

import random

from benchmarks.row import note
from tests.faults.promises import PATIENT, drawn, killed
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.simulated import SimulatedCell
from tests.faults.streams import Stream

KILLS, LONG_KILLS, KILLS_EACH = 48, 2000, 6
STREAMS, TOKENS = 4, 20
STALL_S = 1.0  # simulated, on top of which comes the prefill


async def killing(cell: SimulatedCell, draw: random.Random) -> tuple[list[Stream], list[str]]:
    answers: list[Stream] = []
    found: list[str] = []
    for _ in range(KILLS_EACH):
        mine, wrong = await killed(cell, draw, STREAMS, max_tokens=TOKENS)
        answers += mine
        found += wrong
        assert cell.tape is not None
        cell.tape.clear()
    return answers, found


def rows(args: Args) -> Rows:
    kills = LONG_KILLS if args.long else KILLS
    answers: list[Stream] = []
    problems: list[str] = []
    for seed in range(kills // KILLS_EACH):
        cell = {"verifiers": 2, "drafters": 1 + seed % 2, "coordinator": PATIENT}
        made, found = drawn(killing, "kills", seed, **cell)
        answers += made
        problems += found
        note(f"{(seed + 1) * KILLS_EACH} kills, {len(problems)} problems")
    stall = quantile([answer.longest_gap_s for answer in answers], 0.99)
    value = {
        "kills": kills,
        "streams": len(answers),
        "problems": problems[:3],
        "p99_stall_s": round(stall, 3),
        "engine": "pair",
    }
    bars = {
        "all ids the target's, or what recorded choices lead to": not problems,
        f"p99 stall <= {STALL_S:g} s (simulated time)": stall <= STALL_S,
    }
    yield statement("1", "a verifier is killed at any token (simulated)", value, bars)
