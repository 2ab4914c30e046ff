"""Sampled answers of the whole system follow the target's law: chi-square over every answer of four tokens.

A random target over four tokens, a random drafter for it, three processes, temperature 1, fixed seeds. Requests run
many at a time under `greedy` and `fixed:3` in turn. The drafter keeps three of the four entries of its distribution, so
the rule's sparse form is what is tested. The expected law is enumerated with transformers alone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import AsyncClient, Completion

VOCABULARY = 4
LENGTH = 4
CONCURRENCY = 64
PROMPTS = ([0, 1, 2, 3, 1], [2, 2, 1, 0, 3, 3, 1, 0, 2, 1, 3])
POLICIES = ("greedy", "fixed:3")
SMALLEST_EXPECTED = 8.0  # rarer answers share a cell
P_BAR = 0.001


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sampled_law", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--draws", type=int, default=100_000, help="answers in all")
    parser.add_argument("--seed", type=int, default=20_000, help="first request seed, and key of the checkpoints")
    args = parser.parse_args(argv)
    from benchmarks.tiny_pair import exact_law, write_tiny_pair

    with tempfile.TemporaryDirectory(prefix="dspark-law-") as folder:
        target, drafter = write_tiny_pair(Path(folder), vocabulary=VOCABULARY, seed=args.seed)
        laws = [exact_law(target, prompt, LENGTH, VOCABULARY) for prompt in PROMPTS]
        with LocalCell(target, drafter, draft={"q_entries": VOCABULARY - 1}) as cell:
            counts, tally = asyncio.run(_draw(cell.endpoint, args.draws, args.seed))
    statistic, freedom = 0.0, 0
    for law, count in zip(laws, counts, strict=True):
        more, cells = chi_square(law, count)
        statistic, freedom = statistic + more, freedom + cells - 1
    from scipy.stats import chi2

    p = float(chi2.sf(statistic, freedom))
    value = {
        "p": round(p, 5),
        "chi_square": round(statistic, 1),
        "degrees_of_freedom": freedom,
        "draws": sum(count.total() for count in counts),
        **tally,
    }
    drafted = tally["verified"] > 0 and 0 < tally["accepted"] < tally["verified"]
    bar = f"p > {P_BAR} over >= 100,000 answers, drafts both accepted and rejected"
    return Row(7, "sampled answers follow the target's law", value, bar, p > P_BAR and drafted).show(as_json=args.json)


async def _draw(endpoint: str, draws: int, first_seed: int) -> tuple[list[Counter[int]], dict[str, int]]:
    counts: list[Counter[int]] = [Counter() for _ in PROMPTS]
    tally = {"verified": 0, "accepted": 0}
    seeds = iter(range(first_seed, first_seed + draws))
    done = 0

    async def worker(client: AsyncClient) -> None:
        nonlocal done
        for seed in seeds:
            which = seed % len(PROMPTS)
            policy = POLICIES[seed // len(PROMPTS) % len(POLICIES)]
            answer: Completion = await client.complete(
                PROMPTS[which], max_tokens=LENGTH, temperature=1.0, seed=seed, policy=policy, ignore_eos=True
            )
            cell = 0
            for token in answer.token_ids:
                cell = cell * VOCABULARY + token
            counts[which][cell] += 1
            tally["verified"] += answer.end.speculation.verified_tokens
            tally["accepted"] += answer.end.speculation.accepted_tokens
            done += 1
            if done % 10_000 == 0:
                note(f"{done} answers")

    async with AsyncClient(endpoint) as client, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(client))
    return counts, tally


def chi_square(law: list[float], counts: Counter[int]) -> tuple[float, int]:
    """(statistic, cells) with rare answers pooled into one cell."""
    total = counts.total()
    statistic, cells, rare_expected, rare_seen = 0.0, 0, 0.0, 0
    for answer, probability in enumerate(law):
        expected = probability * total
        if expected < SMALLEST_EXPECTED:
            rare_expected, rare_seen = rare_expected + expected, rare_seen + counts[answer]
            continue
        statistic, cells = statistic + (counts[answer] - expected) ** 2 / expected, cells + 1
    if rare_expected > 0:
        statistic, cells = statistic + (rare_seen - rare_expected) ** 2 / rare_expected, cells + 1
    return statistic, cells


if __name__ == "__main__":
    sys.exit(main())
