"""What the shipped drafter says its chances are, as the coordinator hears it: `python -m
tests.record_confidences`.

Answers of the shipped pair at T=1 in rounds of whole blocks, told by Explain. Plans are tested on
them.
"""

import asyncio
import itertools
import sys
from pathlib import Path

import numpy as np

from benchmarks.pair import DOMAINS, Pair, Prompt, shipped_pair
from deploy.processes import ProcessCell
from dspark.client import AsyncClient

RECORDED = Path(__file__).parent / "data" / "smollm2_confidences.npy"
TEXTS, ROUNDS, SLOTS = 64, 32, 7
AT_A_TIME = 4


async def record(pair: Pair) -> None:
    """[texts, rounds, slots], float16: the calibrated chance of a slot once those before it are
    kept."""
    of_domains = [pair.prompts(domain, TEXTS // len(DOMAINS)) for domain in DOMAINS]
    prompts = itertools.chain.from_iterable(zip(*of_domains, strict=True))
    found = []
    with ProcessCell(pair.target, pair.drafter) as cell:
        async with AsyncClient(cell.endpoint) as client:

            async def one(number: int, prompt: Prompt) -> None:
                name, blocks = f"text-{number}", []
                answer = client.generate(
                    prompt,
                    request_id=name,
                    policy=f"fixed:{SLOTS}",
                    temperature=1.0,
                    seed=number,
                    max_tokens=8 * ROUNDS,
                    ignore_eos=True,
                )
                await anext(answer)
                async for told in client.explain(name):
                    if len(told.slots) == SLOTS:
                        blocks.append([slot.confidence for slot in told.slots])
                    if len(blocks) == ROUNDS:
                        break
                found.append(blocks)
                answer.close()

            numbered = enumerate(prompts)

            async def some() -> None:
                for number, prompt in numbered:
                    await one(number, prompt)

            async with asyncio.TaskGroup() as group:
                for _ in range(AT_A_TIME):
                    group.create_task(some())
    np.save(RECORDED, np.array(found, np.float16), allow_pickle=False)


if __name__ == "__main__":
    sys.exit(asyncio.run(record(shipped_pair())))
