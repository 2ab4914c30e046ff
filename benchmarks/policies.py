"""Row 3: the best adaptive policy against the best of plain decoding and fixed lengths, at every load.

First on real services around synthetic engines, mixed domains, concurrency 1 to 256; then on the demo pair at 1, 8 and
64. At each load the policies take turns, every one with the same requests (same seeds, same lengths), and medians over
the turns are compared. `--simulate` explores the first in simulated time instead, which claims nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

from benchmarks.load import prompts
from benchmarks.load import run as loop
from benchmarks.load.grpc_endpoint import GrpcEndpoint
from benchmarks.load.prompts import Question
from benchmarks.pair import ROOT, leave_in_order
from benchmarks.real_cell import FILES, cell, measure
from benchmarks.row import Row, note
from coordinator.simulation.run import simulate
from coordinator.simulation.scenario import Scenario
from deploy.processes import LocalCell
from dspark.client.request import Sampling
from dspark.synthetic.spec import load_spec

ADAPTIVE = ("greedy", "async")
BASELINES = ("off", *(f"fixed:{slots}" for slots in range(1, 8)))
LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PAIR_LOADS = (1, 8, 64)
LEAST, SOMEWHERE, PAIR_LEAST = 0.97, 1.05, 0.93

Rate = Callable[[str, int], Awaitable[float]]  # policy, concurrency -> tokens a second


def main() -> int:
    """Prints two rows; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON row per line")
    parser.add_argument("--quick", action="store_true", help="three loads, half of the lengths, one short turn")
    parser.add_argument("--turns", type=int, default=3, help="of every policy at every load (3)")
    parser.add_argument("--only", choices=["synthetic", "pair"], help="one of the two rows")
    parser.add_argument("--loads", help="concurrencies of the synthetic row, with commas")
    parser.add_argument("--file", type=Path, default=FILES / "paper.yaml", help="YAML of the synthetic pair")
    parser.add_argument("--simulate", action="store_true", help="explore in simulated time; no row is claimed")
    args = parser.parse_args()
    leave_in_order()
    # A line per request is a service's log; the simulated coordinator writes none.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    codes = [0]
    if args.only != "pair":
        codes.append(asyncio.run(_synthetic(args)).show(as_json=args.json))
    if args.only != "synthetic" and not args.simulate:
        codes.append(asyncio.run(_pair(args)).show(as_json=args.json))
    return max(codes)


# -- synthetic workers ----------------------------------------------------------------------


async def _synthetic(args: argparse.Namespace) -> Row:
    window = (1.5, 4.0) if args.quick else (3.0, 9.0)
    base = Scenario(
        load_spec(args.file), concurrency=1, answer_tokens=(64, 192), warmup_s=window[0], window_s=window[1]
    )
    loads = tuple(map(int, args.loads.split(","))) if args.loads else (1, 16, 64) if args.quick else LOADS
    bar = f"never below {LEAST}x, above {SOMEWHERE}x somewhere"
    if args.simulate:

        async def simulated(policy: str, concurrency: int) -> float:
            wanted = dataclasses.replace(base, policy=policy, concurrency=concurrency)
            return float((await asyncio.to_thread(simulate, wanted))["tok_s"])

        value = await _compare(simulated, loads, 1, args.quick)
        return Row("3.3 synthetic", "adaptive against fixed lengths, SIMULATED", value, bar, None)
    with cell(args.file) as running:

        async def measured(policy: str, concurrency: int) -> float:
            wanted = dataclasses.replace(base, policy=policy, concurrency=concurrency)
            return (await measure(running.endpoint, wanted)).tok_s

        value = await _compare(measured, loads, 1 if args.quick else args.turns, args.quick)
    ratios = [point["ratio"] for point in value.values()]
    holds = min(ratios) >= LEAST and max(ratios) > SOMEWHERE
    return Row("3.3 synthetic", "adaptive against fixed lengths, synthetic workers, tok/s", value, bar, holds)


# -- the demo pair --------------------------------------------------------------------------


async def _pair(args: argparse.Namespace) -> Row:
    settle_s, window_s = (2.0, 5.0) if args.quick else (4.0, 20.0)
    bar = f"at least {PAIR_LEAST}x"
    models = ROOT / "models"
    with LocalCell(models / "demo-target", models / "demo-dspark") as running:

        async def measured(policy: str, concurrency: int) -> float:
            endpoint = GrpcEndpoint(running.endpoint, Sampling(policy=policy, temperature=0.0, ignore_eos=True))
            plan = loop.Plan(concurrency=concurrency, duration_s=settle_s + window_s)
            outcome = await loop.run(endpoint, _mixed(), plan, lambda *_: None)
            opens = outcome.opened + settle_s
            tokens = sum(
                count
                for answer in outcome.answers
                for when, count in zip(answer.times, answer.counts, strict=True)
                if opens <= when < opens + window_s
            )
            return tokens / window_s

        loads = (1, 8) if args.quick else PAIR_LOADS
        value = await _compare(measured, loads, 1 if args.quick else args.turns, args.quick)
    ratios = [point["ratio"] for point in value.values()]
    return Row("3.3 pair", "adaptive against fixed lengths, demo pair, tok/s", value, bar, min(ratios) >= PAIR_LEAST)


def _mixed() -> Iterator[Question]:
    """Held-out prompts, domains in turns, lengths in turns: the same for every policy."""
    questions = prompts.built_in()
    for number, question in enumerate(itertools.cycle(questions)):
        yield dataclasses.replace(question, max_tokens=48 + 16 * (number * 7 % 9))


# -- both -----------------------------------------------------------------------------------


async def _compare(rate: Rate, loads: tuple[int, ...], turns: int, quick: bool) -> dict[str, dict[str, Any]]:
    """Medians of every policy at every load, and the best adaptive one over the best of the others."""
    baselines = BASELINES[::2] if quick else BASELINES
    value: dict[str, dict[str, Any]] = {}
    for concurrency in loads:
        found: dict[str, list[float]] = {policy: [] for policy in (*baselines, *ADAPTIVE)}
        for turn in range(turns):
            # Every other turn backwards, so that nobody always follows the same neighbour.
            for policy in list(found)[:: -1 if turn % 2 else 1]:
                found[policy].append(await rate(policy, concurrency))
        medians = {policy: statistics.median(rates) for policy, rates in found.items()}
        best, rival = max(ADAPTIVE, key=medians.__getitem__), max(baselines, key=medians.__getitem__)
        ratio = medians[best] / medians[rival]
        value[str(concurrency)] = {
            "best": best,
            "rival": rival,
            "ratio": round(ratio, 4),
            "tok_s": {policy: round(median, 1) for policy, median in medians.items()},
        }
        note(f"{concurrency} streams: {best} {medians[best]:.0f}, {rival} {medians[rival]:.0f}: {ratio:.3f}x")
    return value


if __name__ == "__main__":
    sys.exit(main())
