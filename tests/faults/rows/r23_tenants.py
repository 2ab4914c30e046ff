"""Row 23: one tenant floods with 64 streams, another one with 24, four others ask for one answer
after the other: what everybody gets.

Both floods wait all the time, and are owed the same. Weighted service is compared with the bound of
the virtual token counter at every millisecond in which two tenants wait; first tokens of the light
tenants are compared with those they get without the floods. All in simulated time: the real
coordinator, admission and front desk, callers known by their tokens, workers whose passes take 15
and 2 ms. Drafts are of one length: what simulated passes take is not in their reports, from which
a planner would learn.
"""

import asyncio
import random
from collections.abc import Mapping
from functools import partial
from typing import Any

from coordinator.queue.waiting_queue import ANSWER, PROMPT
from dspark.client import AsyncClient
from tests.faults.promises import knowing, token
from tests.faults.rows.program import Args, Rows, quantile, statement
from tests.faults.simulated import SimulatedCell, simulate

FLOODS, LIGHT = {"flood": 64, "crowd": 24}, 4  # streams of each; light tenants
STEPS = {"judge_cohort": 0.015, "prefill_next": 0.015, "timed_draft": 0.002}
PLACES, PROMPT_TOKENS, FLOOD_TOKENS, LIGHT_TOKENS = 16, 32, 48, 24


def rows(args: Args) -> Rows:
    seconds = 600.0 if args.long else 30.0
    with knowing(*FLOODS, *(f"light{number}" for number in range(LIGHT))) as settings:
        settings["coordinator"] |= {"max_running": PLACES, "max_queued": 256, "policy": "fixed:3"}
        alone, beside = (
            simulate(
                partial(_story, seconds=seconds, floods=floods),
                synthetic=True,
                seconds=STEPS,
                **settings,
            )
            for floods in ({}, FLOODS)
        )
    bound = 2.0 * max(PROMPT * PROMPT_TOKENS, ANSWER * PLACES * FLOOD_TOKENS)
    ratio = beside["light_first_token_p99_ms"] / alone["light_first_token_p99_ms"]
    value = {
        "simulated_s": seconds,
        "alone": alone,
        "beside": beside,
        "p99_ratio": round(ratio, 2),
        "bound": bound,
    }
    bars = {
        "gap of weighted tokens within the counter's bound": beside["looks_with_two_waiting"]
        and beside["widest_gap"] <= bound,
        "p99 of light first tokens <= 1.5 x alone": ratio <= 1.5 and not beside["light_errors"],
    }
    yield statement("23", "tenants flood", value, bars)


async def _story(cell: SimulatedCell, seconds: float, floods: Mapping[str, int]) -> dict[str, Any]:
    draw, firsts, errors, widest, looks = random.Random(23), list[float](), 0, 0.0, 0
    ends, served = cell.now + seconds, dict.fromkeys((*FLOODS, "light"), 0)

    async def client(tenant: str, tokens: int, pause_s: float) -> None:
        nonlocal errors
        kind = tenant if tenant in FLOODS else "light"
        async with AsyncClient(cell.endpoint, token=token(tenant)) as own:
            while cell.now < ends:
                began, first = cell.now, None
                prompt = [draw.randrange(1, 1000) for _ in range(PROMPT_TOKENS)]
                try:
                    async for _ in own.generate(
                        prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True
                    ):
                        first = cell.now if first is None else first
                    served[kind] += tokens
                except Exception:
                    errors += kind == "light"
                if kind == "light" and first is not None:
                    firsts.append(first - began)
                await asyncio.sleep(pause_s * draw.random())

    async def look() -> None:
        nonlocal widest, looks
        admission = cell.processes["coordinator/0"].cell.admission
        while cell.now < ends:
            given = admission.given()
            if len(given) > 1:
                widest, looks = max(widest, max(given.values()) - min(given.values())), looks + 1
            await asyncio.sleep(0.001)

    await asyncio.gather(
        look(),
        *(client(who, FLOOD_TOKENS, 0.0) for who, count in floods.items() for _ in range(count)),
        *(client(f"light{number}", LIGHT_TOKENS, 0.2) for number in range(LIGHT)),
    )
    return {
        "light_first_token_p50_ms": round(1e3 * quantile(firsts, 0.5), 1),
        "light_first_token_p99_ms": round(1e3 * quantile(firsts, 0.99), 1),
        "light_answers": len(firsts),
        "light_errors": errors,
        "tokens": served,
        "widest_gap": round(widest, 1),
        "looks_with_two_waiting": looks,
    }
