"""Row 10: pages for half of what is asked at one time, and preemptions at random steps on top;
every answer comes.

Real engines in simulated time, requests under all laws. Waste is what is prefilled again; pages of
a preempted sequence that nobody took meanwhile are found again by the prefix cache, so the run is
measured with it as it is served.
"""

import asyncio
import random
from functools import partial

from benchmarks.row import note
from tests.faults import pair
from tests.faults.promises import freed, judged, take_out_youngest
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.simulated import SimulatedCell, simulate
from tests.faults.streams import Stream

SEQUENCES = 12
SEEDS, LONG_SEEDS = 3, 40
PROMPT, TOKENS = (8, 40), (24, 72)
LONGEST = PROMPT[1] + TOKENS[1]
PAGE = 16
# tokens, on average
FITTING = SEQUENCES * -(-(PROMPT[0] + PROMPT[1] + TOKENS[0] + TOKENS[1]) // 2 // PAGE) * PAGE
STALL_S = 30.0  # simulated: without a token for so long nobody makes progress
MOST_PREEMPTIONS = 12  # of one request, forced ones included
WASTE = 0.10


def requests(seed: int) -> list[tuple[list[int], int]]:
    draw = random.Random(f"requests/{seed}")
    first = draw.randrange(32)
    return [
        (pair.prompt(first + number, draw.randint(*PROMPT)), draw.randint(*TOKENS))
        for number in range(SEQUENCES)
    ]


async def scarce(
    cell: SimulatedCell, seed: int, forced: int
) -> tuple[list[Stream], list[str], dict[str, float]]:
    """The same requests while pages are short and somebody is thrown out now and then."""
    draw = random.Random(f"forced/{seed}")
    membership = cell.processes["coordinator/0"].cell.membership
    most = 0

    async def force() -> None:
        for _ in range(forced):
            await cell.after(draw.uniform(0.002, 0.05))
            take_out_youngest(cell)  # what running out of pages does, at any step

    async def watch() -> None:
        nonlocal most
        while True:
            await cell.after(0.002)
            states = [state for lane in membership.lanes for state in lane.states]
            most = max([most, *(state.sequence.epoch for state in states)])

    forcing, watching = asyncio.create_task(force()), asyncio.create_task(watch())
    asked = (
        cell.ask(prompt, max_tokens=count, **pair.ALL_PARAMS[number % 4])
        for number, (prompt, count) in enumerate(requests(seed))
    )
    answers = list(await asyncio.gather(*asked))
    forcing.cancel()
    watching.cancel()
    figures = {
        "preemptions": cell.metric("num_preemptions_total"),
        "most": most,
        "cached": cell.metric("prefix_cache_hits_total", "verify/0"),
        "asked": cell.metric("prefix_cache_queries_total", "verify/0"),
    }
    return answers, judged(cell, answers) + await freed(cell), figures


def rows(args: Args) -> Rows:
    seeds = LONG_SEEDS if args.long else SEEDS
    ended, problems = 0, list[str]()
    total = {"preemptions": 0.0, "prefilled": 0.0, "needed": 0.0, "produced": 0.0}
    most, stall = 0.0, 0.0
    for seed in range(seeds):
        answers, found, figures = simulate(
            partial(scarce, seed=seed, forced=10),
            verify={"kv_tokens": max(FITTING // 2, LONGEST + PAGE)},
        )
        problems += found
        ended += sum(answer.end is not None for answer in answers)
        stall = max([stall, *(answer.longest_gap_s for answer in answers)])
        most = max(most, figures["most"])
        total["preemptions"] += figures["preemptions"]
        total["prefilled"] += figures["asked"] - figures["cached"]
        total["needed"] += sum(len(prompt) for prompt, _ in requests(seed))
        total["produced"] += sum(count for _, count in requests(seed))
        note(f"seed {seed}: {figures}")
    count = seeds * SEQUENCES
    wasted = (total["prefilled"] - total["needed"]) / (total["needed"] + total["produced"])
    value = {
        "requests": count,
        "ended": ended,
        "problems": problems[:3],
        "engine": "pair",
        "preemptions": int(total["preemptions"]),
        "most_of_one_request": int(most),
        "wasted_prefill": round(wasted, 4),
        "longest_stall_s": round(stall, 2),
    }
    bars = {
        "all end with the target's ids or the recorded choices'": ended == count and not problems,
        f"prefill wasted <= {WASTE:.0%} of all tokens": wasted <= WASTE,
        f"1 to {MOST_PREEMPTIONS} preemptions of a request": most <= MOST_PREEMPTIONS
        and total["preemptions"] > seeds,
        f"no stall of {STALL_S:g} simulated s": stall < STALL_S,
    }
    yield statement("10", "pages for half of the sequences, forced preemption", value, bars)
