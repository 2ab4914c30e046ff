"""Greedy answers of the whole system equal those of plain `transformers.generate` on the same target, token by token.

60 held-out prompts, 128 tokens each, at most eight at a time, arriving at random, drafts by the default policy, fp32.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient, Completion

CONCURRENCY = 8


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.greedy_identity", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args(argv)
    pair = chosen(args)
    per_domain = -(-args.prompts // len(DOMAINS))
    prompts = [pair.token_ids(p) for domain in DOMAINS for p in pair.prompts(domain, per_domain)][: args.prompts]
    with LocalCell(pair.target, pair.drafter, verify={"dtype": "float32"}, draft={"dtype": "float32"}) as cell:
        note(f"{len(prompts)} prompts x {args.tokens} tokens through {cell.endpoint}")
        answers = asyncio.run(_serve(cell.endpoint, prompts, args.tokens))
    note("the same by transformers, one at a time")
    expected = plain_greedy(pair, prompts, args.tokens)
    different = [index for index, answer in enumerate(answers) if list(answer.token_ids) != expected[index]]
    for index in different:
        _explain(pair, prompts[index], list(answers[index].token_ids), expected[index])
    rounds = sum(answer.end.speculation.rounds for answer in answers)
    accepted = sum(answer.end.speculation.accepted_tokens for answer in answers)
    value = {
        "identical": len(prompts) - len(different),
        "prompts": len(prompts),
        "tokens": sum(len(answer.token_ids) for answer in answers),
        "tau": round(1 + accepted / max(rounds, 1), 3),
    }
    holds = not different and accepted > 0
    return Row(5, "greedy answers equal plain greedy", value, "all identical, with drafts accepted", holds).show(
        as_json=args.json
    )


async def _serve(endpoint: str, prompts: list[list[int]], tokens: int) -> list[Completion]:
    rng, gate = random.Random(5), asyncio.Semaphore(CONCURRENCY)

    async def one(client: AsyncClient, prompt: list[int], delay_s: float) -> Completion:
        async with gate:
            await asyncio.sleep(delay_s)
            return await client.complete(prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True, timeout=600)

    async with AsyncClient(endpoint) as client:
        return await asyncio.gather(*(one(client, prompt, rng.expovariate(10.0)) for prompt in prompts))


def plain_greedy(pair: Pair, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """`tokens` greedy ids for each prompt, stop tokens ignored, by transformers alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, pad_token_id=0
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def _explain(pair: Pair, prompt: list[int], given: list[int], expected: list[int]) -> None:
    """Says where an answer leaves the reference, and how close the two best logits are there."""
    import torch
    from transformers import AutoModelForCausalLM

    pairs = zip(given, expected, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(given), len(expected)))
    model = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    with torch.no_grad():
        best = model(torch.tensor([prompt + expected[:at]])).logits[0, -1].topk(2)
    gap = float(best.values[0] - best.values[1])
    note(
        f"token {at}: {given[at : at + 1]} instead of {expected[at : at + 1]}; the two best logits differ by {gap:.1e}"
    )


if __name__ == "__main__":
    sys.exit(main())
