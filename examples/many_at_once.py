"""Asks several questions at the same time.

python examples/many_at_once.py
"""

import asyncio
import sys

from dspark.client import AsyncClient, DsparkError, Overloaded

PROMPTS = ["def add(a, b):", "It was a dark night", "Problem 1:"]


async def ask(client: AsyncClient, prompt: str) -> str:
    while True:
        try:
            return (await client.complete(prompt, max_tokens=48, temperature=0.0, timeout=60)).text
        except Overloaded as full:  # the one error that says when to come back
            await asyncio.sleep(full.retry_after_s)


async def main() -> int:
    try:
        async with AsyncClient() as client:
            print((await client.model_info()).model)
            for prompt, answer in zip(
                PROMPTS, await asyncio.gather(*(ask(client, p) for p in PROMPTS)), strict=True
            ):
                print(f"--- {prompt}{answer}")
    except DsparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
