"""Row 34: the shipped pair says at temperature 0 what transformers says of its target, whatever is
drafted.

All built-in prompts through the chat template, eight at a time, under several policies, by real
processes in fp32. Every answer is gone over by one forward pass of transformers; a token that is
led by less than a near-tie is counted.
"""

import asyncio

from benchmarks.pair import DOMAINS, shipped_pair
from benchmarks.row import note
from dspark.client import AsyncClient
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.streams import Stream, judged

POLICIES = {"off": "off", "fixed:3": "fixed:3", "default": ""}
AT_A_TIME, TOKENS, EACH, LONG_EACH = 8, 48, 4, 30
FP32 = {"dtype": "float32"}


async def ask(endpoint: str, prompts: list[list[int]], policy: str) -> list[Stream]:
    asked = {"max_tokens": TOKENS, "temperature": 0.0, "policy": policy}
    streams = [Stream(prompt, asked) for prompt in prompts]
    room = asyncio.Semaphore(AT_A_TIME)
    async with AsyncClient(endpoint) as client:

        async def one(stream: Stream) -> None:
            async with room:
                await stream.run(client)

        await asyncio.gather(*map(one, streams))
    return streams


def rows(args: Args) -> Rows:
    pair, each = shipped_pair(), LONG_EACH if args.long else EACH
    prompts = [
        pair.token_ids(prompt) for domain in DOMAINS for prompt in pair.prompts(domain, each)
    ]
    said: dict[str, list[list[int]]] = {}
    found = {}
    with FaultCell(pair.target, pair.drafter, verify=FP32, draft=FP32) as cell:
        for name, policy in POLICIES.items():
            streams = asyncio.run(ask(cell.endpoint, prompts, policy))
            said[name] = [one.ids for one in streams]
            found[name] = judged(streams, pair.target)
            note(f"{name}: {found[name]}")
    value = {
        "prompts": len(prompts),
        "tokens": TOKENS,
        "at_a_time": AT_A_TIME,
        "wrong": [f"{name}: {why}" for name, told in found.items() for why in told["wrong"]],
        "near_ties": sum(told["near_ties"] for told in found.values()),
        "other_than_plain": {
            name: sum(map(list.__ne__, ids, said["off"])) for name, ids in said.items()
        },
        "tokens_a_round": {name: told["tokens_a_round"] for name, told in found.items()},
    }
    bars = {
        "all ids transformers', near-ties counted": all(
            told["right"] == len(prompts) for told in found.values()
        ),
        "drafts are kept": value["tokens_a_round"]["fixed:3"] > 1.0,
    }
    yield statement("34", "the shipped pair at temperature 0", value, bars)
