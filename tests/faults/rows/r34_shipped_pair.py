"""Row 34: the shipped pair says at temperature 0 what transformers says of its target, whatever is
drafted.

All built-in prompts through the chat template, eight at a time, under several policies, by real
processes in fp32. Every answer is gone over by one forward pass of transformers; a token that is
led by less than a near-tie is counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from benchmarks.pair import DOMAINS, shipped_pair
from benchmarks.row import note
from dspark.client import AsyncClient
from dspark.types import SamplingParams
from faults import oracle
from faults.processes import FaultCell
from faults.rows.program import Args, Rows, statement

POLICIES = ("off", "fixed:3", "")  # the last is the default
AT_A_TIME, TOKENS, EACH, LONG_EACH = 8, 48, 4, 30

Answers = list[tuple[int, ...]]


async def ask(endpoint: str, prompts: list[list[int]], policy: str) -> tuple[Answers, float]:
    """Answers, and tokens a round."""
    room = asyncio.Semaphore(AT_A_TIME)

    async with AsyncClient(endpoint) as client:

        async def one(prompt: list[int]) -> tuple[tuple[int, ...], int, int]:
            async with room:
                said = await client.complete(
                    prompt, max_tokens=TOKENS, temperature=0.0, policy=policy, timeout=900
                )
            told = said.end.speculation
            return tuple(said.token_ids), told.rounds, told.accepted_tokens

        answers = await asyncio.gather(*map(one, prompts))
    rounds, accepted = sum(each[1] for each in answers), sum(each[2] for each in answers)
    return [each[0] for each in answers], 1.0 + accepted / max(rounds, 1)


def judge(prompts: list[list[int]], answers: Answers, target: Path) -> tuple[list[str], int]:
    """(what is wrong, near-ties)."""
    found = [
        oracle.examine(
            prompt, answer, SamplingParams(temperature=0.0, prompt_len=len(prompt)), target
        )
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    return [each.wrong for each in found if each.wrong], sum(each.near_ties for each in found)


def rows(args: Args) -> Rows:
    pair, each = shipped_pair(), LONG_EACH if args.long else EACH
    prompts = [
        pair.token_ids(prompt) for domain in DOMAINS for prompt in pair.prompts(domain, each)
    ]
    value: dict[str, object] = {"prompts": len(prompts), "tokens": TOKENS, "at_a_time": AT_A_TIME}
    served: dict[str, Answers] = {}
    speed: dict[str, float] = {}
    with FaultCell(
        pair.target, pair.drafter, verify={"dtype": "float32"}, draft={"dtype": "float32"}
    ) as cell:
        for policy in POLICIES:
            name = policy or "default"
            served[name], speed[name] = asyncio.run(ask(cell.endpoint, prompts, policy))
            note(f"{name}: {len(prompts)} answers, {speed[name]:.2f} tokens a round")
    wrong, near = judge(prompts, served["off"], pair.target)
    other: Counter[str] = Counter()
    for name in served.keys() - {"off"}:
        changed = [row for row, answer in enumerate(served[name]) if answer != served["off"][row]]
        other[name] = len(changed)  # each has to be the target's own all the same
        found, more = judge(
            [prompts[row] for row in changed], [served[name][row] for row in changed], pair.target
        )
        wrong, near = [*wrong, *(f"{name}: {why}" for why in found)], near + more
    value |= {
        "wrong": wrong[:5],
        "wrong_in_all": len(wrong),
        "near_ties": near,
        "other_than_plain": dict(other),
    }
    value |= {"tokens_a_round": {name: round(rate, 3) for name, rate in speed.items()}}
    bars = {
        "all ids transformers', near-ties counted": not wrong and all(map(len, served["off"])),
        "drafts are kept": speed["fixed:3"] > 1.0,
    }
    yield statement("34", "the shipped pair at temperature 0", value, bars)
