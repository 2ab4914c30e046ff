"""Row 20: what a request is answered hangs on nothing but itself: company, policy, pages, drafters,
losses.

Requests of random laws (truncations, penalties, biases, least lengths, several rules) arrive over a
while at two verifiers with few pages and two drafters; every answer is judged by the target alone.
A verifier and a drafter are killed on the way and come back, pages that were computed before are
found again. That processes answer as transformers do is for row 34 and `tests/e2e`.
"""

import asyncio
import random
from typing import Any

from benchmarks.row import note
from tests.faults import pair
from tests.faults.promises import PATIENT, drawn, judged, take_out_youngest
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.simulated import SimulatedCell
from tests.faults.streams import Stream

REQUESTS, LONG_REQUESTS, EACH = 60, 600, 30
CELL: dict[str, Any] = {
    "verifiers": 2,
    "drafters": 2,
    "coordinator": {**PATIENT, "max_running": 64},
    "verify": {"kv_tokens": 512},
}
POLICIES = ("off", "adaptive", "fixed:1", "fixed:3", "fixed:7", "threshold:0.3", "threshold:0.7")


def options(prompt: list[int], draw: random.Random) -> dict[str, Any]:
    """A law; fields beyond temperature come each by itself and name likely ids."""
    made = dict(draw.choice(pair.ALL_PARAMS))
    if made["temperature"]:
        made |= {"temperature": draw.choice([0.6, 1.0, 1.4])}
        made |= {"top_p": draw.choice([1.0, 0.9]), "top_k": draw.choice([0, 20])}
    if draw.random() < 0.2:
        made |= {"repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    if draw.random() < 0.2:
        made["min_p"] = draw.choice([0.02, 0.1])
    if draw.random() < 0.2:
        made["logit_bias"] = {
            token: draw.choice([-4.0, -1.5, 1.5]) for token in sorted(set(prompt))[:3]
        }
    return made


async def company(cell: SimulatedCell, draw: random.Random) -> dict[str, Any]:
    async def one(number: int) -> Stream:
        # pages are shared by some
        ids = [
            *pair.prompt(number % 4, draw.choice([4, 20, 36, 52])),
            number + 2,
        ]
        tokens, policy, params = draw.randint(8, 40), draw.choice(POLICIES), options(ids, draw)
        await cell.after(draw.random() * 0.8)
        return await cell.ask(ids, max_tokens=tokens, policy=policy, **params)

    asked = [asyncio.create_task(one(number)) for number in range(EACH)]
    for name in ("draft/0", "verify/0"):
        await cell.after(0.3)
        take_out_youngest(cell)  # what running out of pages does
        cell.kill(name)
        await cell.restart(name)
    answers = list(await asyncio.gather(*asked))
    ends = [answer.end.speculation for answer in answers if answer.end is not None]
    return {
        "problems": judged(cell, answers),
        "preempted": cell.metric("num_preemptions_total"),
        "cached": sum(
            cell.metric("prefix_cache_hits_total", name) for name in ("verify/0", "verify/1")
        ),
        "verified": sum(each.verified_tokens for each in ends),
        "accepted": sum(each.accepted_tokens for each in ends),
    }


def rows(args: Args) -> Rows:
    count = LONG_REQUESTS if args.long else REQUESTS
    told: dict[str, Any] = dict.fromkeys(("preempted", "cached", "verified", "accepted"), 0)
    told["problems"] = []
    for seed in range(count // EACH):
        made = drawn(company, "company", seed, **CELL)
        told = {name: value + made[name] for name, value in told.items()}
        note(f"{(seed + 1) * EACH} requests, {len(told['problems'])} problems")
    value = {"requests": count, **told, "problems": told["problems"][:3], "engine": "pair"}
    bars = {
        "each answer the target's or what recorded choices lead to": not told["problems"],
        "some preempted and cached": told["preempted"] and told["cached"] and told["accepted"],
    }
    yield statement("20", "same answers in any company", value, bars)
