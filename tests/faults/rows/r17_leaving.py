"""Row 17: deadlines pass, clients cancel or vanish, at any moment; everything they held is free at
once.

Simulated time, the real coordinator and workers. Free within one step and 100 ms counts from the
moment the coordinator can know: its own deadline, the cancel's arrival, or the connection that is
seen to be dead. The other path of gRPC's, a cancel that meets a pending write, is real sockets' and
is shown by `r17_real_leaving`.
"""

import asyncio
import random
from functools import partial

from benchmarks.row import note
from dspark.client import DeadlineExceeded
from tests.faults.promises import drawn
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.simulated import SimulatedCell

STEP_S = 0.0053  # of the simulated verifier, with its hops
LIMIT_S = STEP_S + 0.1
AT_ONCE = 8


async def leave(cell: SimulatedCell, how: str, draw: random.Random) -> tuple[float, str]:
    """One request that ends early; when, and what was wrong about it."""
    moment = draw.uniform(0.0005, 0.1)
    prompt = [draw.randrange(2, 100) for _ in range(draw.randint(1, 30))]
    if how == "deadline":
        answer = await cell.ask(prompt, max_tokens=5000, timeout=moment)
        wrong = (
            ""
            if isinstance(answer.error, DeadlineExceeded)
            else f"a deadline ended with {answer.error!r}"
        )
        return cell.now, wrong
    name = f"client/{draw.getrandbits(60)}"
    client = cell.network.begin(name)  # a process, which can be killed like any other
    work = cell.network.within(client, cell.ask(prompt, max_tokens=5000))
    asking = asyncio.create_task(work)
    await cell.after(moment)
    if how == "cancel":
        asking.cancel()
    else:  # its process dies
        cell.kill(name)
    await asyncio.wait({asking})
    return cell.now, ""


async def story(
    cell: SimulatedCell, draw: random.Random, rounds: int
) -> tuple[list[float], list[str]]:
    """Groups that leave together; the seconds until nothing of them is held."""
    took, wrong = [], []
    for _ in range(rounds):
        group = [
            leave(cell, draw.choice(["deadline", "cancel", "vanish"]), draw) for _ in range(AT_ONCE)
        ]
        ends = await asyncio.gather(*group)
        wrong += [problem for _, problem in ends if problem]
        last = max(moment for moment, _ in ends)
        await cell.until(lambda: not cell.left_over(), within_s=30.0, each_s=0.001)
        took.append(cell.now - last)
    pages = [
        cell.processes[name].engine.held.pages_held for name in cell.processes if name[0] in "vd"
    ]
    assert not any(pages), f"{pages} pages leaked"
    return took, wrong


def rows(args: Args) -> Rows:
    requests = 10_000 if args.long else 800
    took: list[float] = []
    wrong: list[str] = []
    for seed in range(8):
        tell = partial(story, rounds=requests // 8 // AT_ONCE)
        some, problems = drawn(tell, "leaving", seed, synthetic=True)
        took += some
        wrong += problems
        note(f"{len(took) * AT_ONCE} requests, slowest {max(took):.3f} s")
    value = {
        "requests": len(took) * AT_ONCE,
        "wrong_ends": len(wrong),
        "why": wrong[:3],
        "free_after_p99_s": round(quantile(took, 0.99), 4),
        "free_after_most_s": round(max(took), 4),
        "leaked_pages": 0,
    }
    bars = {
        f"all free <= {LIMIT_S:.3f} s (a step and 100 ms) after they left, no page leaked "
        "(simulated time)": max(took) <= LIMIT_S,
        "every deadline told as one": not wrong,
    }
    yield statement("17", "deadlines, cancels and vanished clients free everything", value, bars)
