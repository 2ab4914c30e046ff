"""A prompt that begins like one before it is prefilled from where they part, and its drafts are no worse for it.

    python -m benchmarks.prefix_cache

Prompts of 512 tokens and a short tail, each asked twice, at temperature 0 with whole blocks verified: cold, then warm.
A third time the tail differs. The warm ones may compute one page of prompt at most; tau must be that of the cold run
and the ids the same, or the drafter's context has a hole.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient, Completion

PREFIX, TAIL, ANSWER, PAGE = 512, 9, 96, 16
PROMPTS, QUICK = 12, 4


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_cache", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} prompts")
    args = parser.parse_args(argv)
    pair = chosen(args)
    prompts = _prompts(pair, QUICK if args.quick else PROMPTS)
    verify = {"page_size": PAGE, "dtype": "float32"}
    with LocalCell(pair.target, pair.drafter, verify=verify) as cell:
        note(f"{len(prompts)} prompts of {PREFIX + TAIL} tokens, cold, warm, and with another tail")
        cold, warm, other = asyncio.run(_ask(cell.endpoint, prompts))
    computed = [answer.end.usage.prompt_tokens - answer.end.usage.cached_tokens for answer in (*warm, *other)]
    taus = [_tau(answers) for answers in (cold, warm)]
    first_ms = [statistics.median(answer.end.timings.ttft_ms for answer in answers) for answers in (cold, warm)]
    value = {
        "prompts": len(prompts),
        "computed_cold": PREFIX + TAIL - max(answer.end.usage.cached_tokens for answer in cold),
        "computed_warm_at_most": max(computed),
        "tau_cold": round(taus[0], 3),
        "tau_warm": round(taus[1], 3),
        "same_ids": sum(a.token_ids == b.token_ids for a, b in zip(cold, warm, strict=True)),
        "ttft_ms_cold": round(first_ms[0], 1),
        "ttft_ms_warm": round(first_ms[1], 1),
    }
    holds = max(computed) <= PAGE and abs(taus[1] / taus[0] - 1) < 0.02 and value["same_ids"] == len(prompts)
    bar = f"at most {PAGE} prompt tokens computed, tau within 2 % of the cold run's, ids the same"
    return Row("3.10", "prefix cache", value, bar, holds).show(as_json=args.json)


def _prompts(pair: Pair, count: int) -> list[list[int]]:
    """Held-out text of one domain each, joined to one length; no two begin alike."""
    made = []
    for n in range(count):
        domain, place = DOMAINS[n % len(DOMAINS)], n // len(DOMAINS)
        texts = [pair.token_ids(prompt) for prompt in pair.prompts(domain, 12, skip=place)]
        ids = [token for text in texts for token in text]
        made.append((ids * (PREFIX // len(ids) + 1))[:PREFIX] + ids[:TAIL])
    return made


async def _ask(endpoint: str, prompts: list[list[int]]) -> tuple[list[Completion], ...]:
    async with AsyncClient(endpoint) as client:

        async def one(prompt: list[int]) -> Completion:
            return await client.complete(
                prompt, max_tokens=ANSWER, temperature=0.0, ignore_eos=True, policy="fixed:7", timeout=120
            )

        other = [prompt[:PREFIX] + prompt[PREFIX:][::-1] for prompt in prompts]
        cold = [await one(prompt) for prompt in prompts]
        warm = [await one(prompt) for prompt in prompts]
        return cold, warm, [await one(prompt) for prompt in other]


def _tau(answers: list[Completion]) -> float:
    rounds = sum(answer.end.speculation.rounds for answer in answers)
    return 1 + sum(answer.end.speculation.accepted_tokens for answer in answers) / max(rounds, 1)


if __name__ == "__main__":
    sys.exit(main())
