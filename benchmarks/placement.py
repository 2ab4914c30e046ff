"""Processes of a cell on a machine of two processors: the first verifier and drafter kept to one, the coordinator to
the other (`deploy/placement.py`), beside the same cell whose processes run wherever the operating system puts them.

    python -m benchmarks.placement

Both cells are up all the time and asked by turns, so that an hour in which the machine is slow is slow for both. One
stream: the same prompt goes to both, the order changes with every prompt. Sixteen: windows of one cell and the other.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections import defaultdict
from contextlib import ExitStack

from benchmarks.pair import DOMAINS, Pair, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.placement import homes
from deploy.processes import LocalCell
from dspark.client import AsyncClient
from dspark.runtime.cpus import usable

POLICIES = ("off", "greedy")
TOKENS = 128
STREAMS = 16
ROLES = ("coordinator", "verify", "draft")

Samples = dict[tuple[str, str], dict[str, list[float]]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured (5)")
    parser.add_argument("--window", type=float, default=10.0, help="seconds of one window of 16 streams (10)")
    args = parser.parse_args(argv)
    pair = chosen(args)
    name, bar = "tokens a second of a placed cell, over those of one that is not", "above 1, told"
    if not homes(usable()):
        why = f"the machine has {len(usable())} processors, cells are placed where there are two"
        return Row("placement", name, why, bar, None).show(as_json=args.json)
    anywhere = {"cpus": ",".join(map(str, usable()))}
    with ExitStack() as both:
        cells = {
            "placed": both.enter_context(LocalCell(pair.target, pair.drafter)),
            "anywhere": both.enter_context(
                LocalCell(pair.target, pair.drafter, **dict.fromkeys(ROLES, anywhere))  # type: ignore[arg-type]
            ),
        }
        found: Samples = defaultdict(lambda: defaultdict(list))
        asyncio.run(_measure(cells, pair, args.rounds, args.window, found))
    value = {
        f"{what}, {policy}": {
            "ratio": round(statistics.median(p / a for p, a in zip(by["placed"], by["anywhere"], strict=True)), 3),
            **{cell: round(statistics.median(speeds), 1) for cell, speeds in by.items()},
        }
        for (what, policy), by in found.items()
    }
    holds = statistics.mean(float(entry["ratio"]) for entry in value.values()) > 1.0
    return Row("placement", name, value, bar, holds).show(as_json=args.json)


async def _measure(cells: dict[str, LocalCell], pair: Pair, rounds: int, window_s: float, found: Samples) -> None:
    """Tokens a second by what was asked and by cell; entries of both cells belong together."""
    turns = itertools.cycle((list(cells), list(cells)[::-1]))
    for n in range(rounds):
        for domain, policy in itertools.product(DOMAINS, POLICIES):
            for prompt in pair.prompts(domain, 4):
                for cell in next(turns):
                    async with AsyncClient(cells[cell].endpoint) as client:
                        began = time.perf_counter()
                        await client.complete(
                            prompt, max_tokens=TOKENS, temperature=0.0, policy=policy, ignore_eos=True, timeout=120
                        )
                    found[f"one stream, {domain}", policy][cell].append(TOKENS / (time.perf_counter() - began))
        for policy in POLICIES:
            for cell in next(turns):
                speed = await _load(cells[cell].endpoint, pair, policy, window_s)
                found[f"{STREAMS} streams", policy][cell].append(speed)
        note(f"round {n + 1} of {rounds}")


async def _load(endpoint: str, pair: Pair, policy: str, window_s: float) -> float:
    """Tokens a second of 16 streams that never pause, over whole answers of the window."""
    prompts = itertools.cycle(p for trio in zip(*(pair.prompts(d, 8) for d in DOMAINS), strict=True) for p in trio)
    until = time.perf_counter() + window_s
    tokens = 0

    async def user(client: AsyncClient) -> None:
        nonlocal tokens
        while time.perf_counter() < until:
            answer = await client.complete(
                next(prompts), max_tokens=TOKENS, temperature=0.0, policy=policy, ignore_eos=True, timeout=120
            )
            tokens += len(answer.token_ids)

    began = time.perf_counter()
    async with AsyncClient(endpoint) as client:
        await asyncio.gather(*(user(client) for _ in range(STREAMS)))
    return tokens / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
