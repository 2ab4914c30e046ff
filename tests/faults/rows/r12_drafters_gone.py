"""Row 12: every drafter dies in the middle of long answers: plain decoding at once, drafts again
when they are back.

Simulated time, real engines. `share_of_plain` is the speed while they are dead, as a share of that
of the same streams under the policy `off`; `back_s` the time from the drafters' return to the first
round with a draft.
"""

import asyncio
import random
from typing import Any

from benchmarks.row import note
from tests.faults.promises import PROMISES, asking, judged
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream

STREAMS, TOKENS, DEAD_S = 4, 200, 2.0
STEPS = {"judge_cohort": 0.02, "timed_draft": 0.003}  # seconds
SHARE, BACK_S = 0.95, 5.0


def ask(cell: SimulatedCell, answers: list[Stream], policy: str) -> list[asyncio.Task[Stream]]:
    options: dict[str, Any] = {"prompts": (20,), "max_tokens": TOKENS, "policy": policy}
    return asking(cell, random.Random(12), STREAMS, into=answers, **options)


async def rate(cell: SimulatedCell, answers: list[Stream]) -> float:
    """Tokens a second, for as long as drafters are dead."""
    before = sum(len(answer.ids) for answer in answers)
    await cell.after(DEAD_S)
    return (sum(len(answer.ids) for answer in answers) - before) / DEAD_S


async def plain(cell: SimulatedCell) -> float:
    answers = [Stream() for _ in range(STREAMS)]
    tasks = ask(cell, answers, "off")
    await cell.after(0.5)
    found = await rate(cell, answers)
    for task in tasks:
        task.cancel()
    return found


async def story(cell: SimulatedCell) -> dict[str, Any]:
    answers = [Stream() for _ in range(STREAMS)]
    tasks = ask(cell, answers, "fixed:3")
    await cell.after(0.3)
    cell.kill("draft/0")
    cell.kill("draft/1")
    await cell.after(0.1)
    dead = await rate(cell, answers)
    prefills, at = cell.metric("prefills_total"), cell.now
    drafts = cell.metric("spec_decode_num_drafts_total")
    await asyncio.gather(cell.restart("draft/0"), cell.restart("draft/1"))
    await cell.until(lambda: cell.metric("spec_decode_num_drafts_total") > drafts)
    back = cell.now - at
    await asyncio.gather(*tasks)
    return {
        "problems": judged(cell, answers)[:3],
        "rate": dead,
        "back_s": round(back, 2),
        "prefills_again": cell.metric("prefills_total") - prefills,
    }


def rows(args: Args) -> Rows:
    plain_rate = simulate(plain, drafters=2, seconds=STEPS)
    value = simulate(story, drafters=2, seconds=STEPS)
    value["share_of_plain"] = round(value.pop("rate") / plain_rate, 3)
    for seed in range(20 if args.long else 3):
        value["problems"] += PROMISES["drafters gone"](seed)
        note(f"seed {seed}")
    value["engine"] = "pair"
    bars = {
        "the target's ids or the recorded choices'": not value["problems"],
        f">= {SHARE:.0%} of plain speed, no prefill again": value["share_of_plain"] >= SHARE
        and not value["prefills_again"],
        f"drafts again <= {BACK_S:g} s": value["back_s"] <= BACK_S,
    }
    yield statement("12", "without drafters it is plain decoding", value, bars)
