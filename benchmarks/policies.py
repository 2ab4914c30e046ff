"""B4: the best adaptive policy against the best of plain decoding and fixed lengths, at every load.

First on real services around synthetic engines, mixed domains, concurrency 1 to 256; then on the shipped pair at 1, 8
and 32. At each load all policies take turns with the same requests (same seeds, same lengths), see `turns`: at few
streams with a number of answers, at many with what arrives in a window. A failed request ends the run. `--save FILE`
keeps every measurement and goes on from what stands there. `dspark simulate` explores the first part.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.pair import Pair, leave_in_order, shipped_pair
from benchmarks.real_cell import FILES, cell, measure, questions, sampling, windowed, worked
from benchmarks.row import Row
from benchmarks.turns import Book, Tournament
from coordinator.http.template import question_renderer
from coordinator.simulation.scenario import Scenario
from deploy.processes import ProcessCell
from dspark.client.request import Options
from dspark.loadgen import prompts
from dspark.loadgen import run as loop
from dspark.loadgen.prompts import Question
from dspark.model.location import locate
from dspark.synthetic.spec import load_spec

LOADS, QUICK_LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 16, 64)
PAIR_LOADS, PAIR_QUICK_LOADS = (1, 8, 32), (1, 8)
LEAST, SOMEWHERE, PAIR_LEAST = 0.97, 1.05, 0.95
ANSWERS = (24, 72)  # tokens of a synthetic answer: a window sees many of them begin and end
TURNS, QUICK_TURNS = 5, 2
FEW = 8  # streams up to which answers are counted, not seconds
EACH, EACH_QUICK = 8, 4  # synthetic answers a user
PAIR_ANSWER = 128  # tokens
PAIR_WORK, PAIR_WORK_QUICK = {1: 6, 8: 24}, {1: 3, 8: 12}  # answers of the shipped pair: of every domain as many


@dataclasses.dataclass(frozen=True)
class MeasuringWindow:
    """Seconds of one measurement; taking in a stream takes time of its own, and many streams have longer rounds."""

    settle_s: float
    settle_stream_s: float
    window_s: float
    window_stream_s: float = 0.0

    def settle(self, concurrency: int) -> float:
        return self.settle_s + self.settle_stream_s * concurrency

    def seconds(self, concurrency: int) -> float:
        return self.window_s + self.window_stream_s * concurrency


SYNTHETIC, SYNTHETIC_QUICK = MeasuringWindow(0.6, 0.02, 2.0, 0.02), MeasuringWindow(0.3, 0.008, 1.0)
PAIR, PAIR_QUICK = MeasuringWindow(1.0, 0.05, 10.0), MeasuringWindow(0.4, 0.02, 1.2)


def main(argv: list[str] | None = None) -> int:
    """Prints its rows; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON row per line")
    parser.add_argument("--quick", action="store_true", help="fewer loads, fewer and shorter turns")
    parser.add_argument("--turns", type=int, help=f"of every policy at every load ({TURNS}; quick: {QUICK_TURNS})")
    parser.add_argument("--only", choices=["synthetic", "pair"], help="one of the rows")
    parser.add_argument("--drafter", help="folder or hub id: another one of the shipped target, in its pair's row")
    parser.add_argument("--loads", help="concurrencies, with commas")
    parser.add_argument("--file", type=Path, default=FILES / "paper.yaml", help="YAML of the synthetic pair")
    parser.add_argument("--save", type=Path, metavar="FILE", help="JSON lines of all measurements; goes on from them")
    args = parser.parse_args(argv)
    leave_in_order()
    settings = {"quick": args.quick, "drafter": args.drafter, "file": args.file.name}
    book = Book(args.save, settings | {"answers": ANSWERS, "work": _how(args.quick)})
    parts = {"synthetic": _synthetic, "pair": _pair}
    chosen = [measure for part, measure in parts.items() if args.only in (None, part)]
    return max([asyncio.run(measure(args, book)).show(as_json=args.json) for measure in chosen])


def _how(quick: bool) -> list[Any]:
    """How a measurement is made: those of another way are not gone on from."""
    windows = (SYNTHETIC_QUICK, PAIR_QUICK) if quick else (SYNTHETIC, PAIR)
    pair = PAIR_WORK_QUICK if quick else PAIR_WORK
    return [FEW, EACH_QUICK if quick else EACH, pair, *map(dataclasses.astuple, windows)]


def _plan(args: argparse.Namespace, full: tuple[int, ...], quick: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """(loads, turns)"""
    loads = tuple(map(int, args.loads.split(","))) if args.loads else quick if args.quick else full
    return loads, args.turns or (QUICK_TURNS if args.quick else TURNS)


# -- synthetic workers ----------------------------------------------------------------------


async def _synthetic(args: argparse.Namespace, book: Book) -> Row:
    window = SYNTHETIC_QUICK if args.quick else SYNTHETIC
    base = Scenario(load_spec(args.file), concurrency=1, answer_tokens=ANSWERS, window_s=window.window_s)
    bar = f"never below {LEAST}x, above {SOMEWHERE}x somewhere"

    def wanted(policy: str, concurrency: int) -> Scenario:
        return dataclasses.replace(
            base,
            policy=policy,
            concurrency=concurrency,
            warmup_s=window.settle(concurrency),
            window_s=window.seconds(concurrency),
        )

    loads, turns = _plan(args, LOADS, QUICK_LOADS)
    with cell(args.file) as running:

        async def measured(policy: str, concurrency: int) -> float:
            scenario = wanted(policy, concurrency)
            if concurrency > FEW:
                return (await measure(running.endpoint, scenario)).tok_s
            answers = (EACH_QUICK if args.quick else EACH) * concurrency
            options, asked = sampling(scenario), questions(scenario)
            return (await worked(running.endpoint, options, asked, concurrency, answers)).tok_s

        value = await Tournament("synthetic", measured, book, turns).run(loads)
    ratios = [float(str(point["ratio"])) for point in value.values()]
    holds = min(ratios) >= LEAST and max(ratios) > SOMEWHERE
    return Row("B4 synthetic", "adaptive against fixed lengths, synthetic workers, tok/s", value, bar, holds)


# -- the shipped pair --------------------------------------------------------------------------


async def _pair(args: argparse.Namespace, book: Book) -> Row:
    window = PAIR_QUICK if args.quick else PAIR
    bar = f"at least {PAIR_LEAST}x"
    work = PAIR_WORK_QUICK if args.quick else PAIR_WORK
    pair = shipped_pair()
    if args.drafter is not None:
        pair = dataclasses.replace(pair, drafter=locate(args.drafter))
    with ProcessCell(pair.target, pair.drafter) as running:

        async def measured(policy: str, concurrency: int) -> float:
            options = Options(policy=policy, temperature=0.0, ignore_eos=True)
            if answers := work.get(concurrency):
                return (await worked(running.endpoint, options, _mixed(pair), concurrency, answers)).tok_s
            settle_s = window.settle(concurrency)
            plan = loop.LoadPlan(concurrency=concurrency, duration_s=settle_s + window.window_s)
            point = await windowed(running.endpoint, options, _mixed(pair), plan, settle_s, window.window_s)
            return point.tok_s

        loads, turns = _plan(args, PAIR_LOADS, PAIR_QUICK_LOADS)
        value = await Tournament("pair", measured, book, turns).run(loads)
    ratios = [point["ratio"] for point in value.values()]
    name = "shipped pair" if args.drafter is None else f"shipped target, {pair.drafter.name}"
    return Row("B4 pair", f"adaptive against fixed lengths, {name}, tok/s", value, bar, min(ratios) >= PAIR_LEAST)


def _mixed(pair: Pair) -> Iterator[Question]:
    """Prompts, domains in turns: the same for every policy."""
    for question in itertools.cycle(prompts.built_in(render=question_renderer(str(pair.target)))):
        yield dataclasses.replace(question, max_tokens=PAIR_ANSWER)


if __name__ == "__main__":
    sys.exit(main())
