"""Row 20: one request's ids, alone, in a batch, among other arrivals, under every policy, without drafter, preempted.

Half of the requests are greedy and half are sampled with a seed, which is the coupled rule. Real engines in fp32, the
whole path in simulated time. A difference is a near-tie where the target's two best candidates lie closer than 1e-4;
those are counted, and are no failure of the promise.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.row import Row, note
from faults.rows.program import arguments
from faults.simulated import TARGET, Answer, SimulatedCell, simulate

TOKENS = 64
NEAR = 1e-4


def requests(count: int) -> list[tuple[list[int], dict[str, Any]]]:
    draw = random.Random("same ids")
    made = []
    for number in range(count):
        prompt = [draw.randrange(2, 126) for _ in range(draw.randint(1, 24))]
        sampled = {"temperature": 0.8, "seed": number, "rule": "coupled", "top_p": 0.95}
        made.append((prompt, sampled if number % 2 else {"temperature": 0.0}))
    return made


def together(policy: str, stagger_s: float) -> Callable[[SimulatedCell, int], Awaitable[list[Answer]]]:
    async def story(cell: SimulatedCell, count: int) -> list[Answer]:
        draw = random.Random(f"{policy}/{stagger_s}")

        async def one(prompt: list[int], options: dict[str, Any]) -> Answer:
            await cell.after(draw.random() * stagger_s)
            return await cell.ask(prompt, max_tokens=TOKENS, policy=policy, **options)

        return list(await asyncio.gather(*(one(*each) for each in requests(count))))

    return story


async def alone(cell: SimulatedCell, count: int) -> list[Answer]:
    return [await cell.ask(p, max_tokens=TOKENS, policy="off", **options) for p, options in requests(count)]


ROOMY = {"kv_tokens": 1 << 15}
VARIANTS: dict[str, tuple[Callable[[SimulatedCell, int], Awaitable[list[Answer]]], dict[str, Any]]] = {
    "greedy, all at once": (together("greedy", 0.0), {"verify": ROOMY}),
    "fixed:1, arriving over 2 s": (together("fixed:1", 2.0), {"verify": ROOMY}),
    "fixed:7, arriving over 0.3 s": (together("fixed:7", 0.3), {"verify": ROOMY}),
    "async, two verifiers": (together("async", 0.3), {"verify": ROOMY, "verifiers": 2, "drafters": 2}),
    "no drafter": (together("greedy", 0.3), {"verify": ROOMY, "drafters": 0}),
    "pages for a fifth": (together("fixed:3", 0.1), {"verify": {"kv_tokens": 512}}),
}


def main() -> int:
    args = arguments(__doc__)
    count = 1000 if args.long else 12
    settings = {"coordinator": {"max_handovers": 1000, "max_running": 64}}
    plain = simulate(lambda cell: alone(cell, count), verify=ROOMY, **settings)
    compared = same = 0
    near, other, failed = 0, [], [str(answer.error) for answer in plain if answer.error]
    for name, (story, more) in VARIANTS.items():
        answers = simulate(lambda cell, story=story: story(cell, count), **settings, **more)
        for number, (answer, expected) in enumerate(zip(answers, plain, strict=True)):
            compared += 1
            if answer.error is not None:
                failed.append(f"{name}: {answer.error}")
            elif answer.ids == expected.ids:
                same += 1
            elif margin(number, expected.ids, answer.ids, count) < NEAR:
                near += 1
            else:
                other.append(f"{name}: request {number}")
        note(f"{name}: {same} of {compared} the same, {near} near-ties")
    value = {
        "requests": count,
        "variants": len(VARIANTS),
        "compared": compared,
        "same_ids": same,
        "near_ties": near,
        "other": other[:5],
        "failed": failed[:5],
    }
    holds = same + near == compared and near <= compared // 100
    bar = f"all ids the same (near-ties below {NEAR:g} counted, at most 1 %)"
    return Row("20", "same ids in any company", value, bar, holds).show(as_json=args.json)


_model: Any = None


def margin(number: int, one: list[int], other: list[int], count: int) -> float:
    """How far the target's two best logits lie apart where two greedy answers part; infinite for sampled ones."""
    global _model
    prompt, options = requests(count)[number]
    if options["temperature"]:
        return float("inf")
    if _model is None:
        _model = AutoModelForCausalLM.from_pretrained(TARGET, torch_dtype=torch.float32).eval()
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    with torch.no_grad():
        logits = _model(torch.tensor([prompt + one[:at]])).logits[0, -1]
    best = logits.topk(2).values
    return float(best[0] - best[1])


if __name__ == "__main__":
    sys.exit(main())
