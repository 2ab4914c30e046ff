"""B4: the adaptive policy against the best of plain decoding and fixed lengths, at every load.

First on real services around synthetic engines, mixed domains, concurrency 1 to 256; then on the
shipped pair at 1, 8 and 32. At each load all policies take turns with the same requests (same
seeds, same lengths), see `turns`: at few streams with a number of answers, at many with what
arrives in a window. A failed request ends the run. `--save FILE` keeps every measurement and goes
on from what stands there. `dspark simulate` explores the first part.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pair import Pair, leave_in_order, shipped_pair
from benchmarks.real_cell import FILES, cell, questions, sampling, windowed, worked
from benchmarks.row import Program, Row
from benchmarks.turns import SavedMeasurements, Tournament
from coordinator.http.template import question_renderer
from coordinator.simulation.scenario import Scenario
from deploy.processes import ProcessCell
from dspark.client.request import Options
from dspark.loadgen import prompts
from dspark.loadgen import run as loop
from dspark.loadgen.prompts import Question
from dspark.model.location import locate
from dspark.synthetic.spec import load_spec

LOADS = {"synthetic": (1, 2, 4, 8, 16, 32, 64, 128, 256), "pair": (1, 8, 32)}
QUICK_LOADS = {"synthetic": (1, 16, 64), "pair": (1, 8)}
LEAST, SOMEWHERE, PAIR_LEAST = 0.97, 1.05, 0.95
ANSWERS = (24, 72)  # tokens of a synthetic answer: a window sees many of them begin and end
TURNS, QUICK_TURNS = 5, 2
PAIR_ANSWER = 128  # tokens


@dataclasses.dataclass(frozen=True)
class Measuring:
    """How a rate is measured. work: number of answers, by number of streams, where these are few.
    With more streams the tokens of a window count: its seconds, and those before it, both longer
    with every stream, for each takes time to admit and lengthens rounds."""

    work: Mapping[int, int]
    settle_s: float
    settle_stream_s: float
    window_s: float
    window_stream_s: float = 0.0

    async def tok_s(self, served: MeasuredCell, policy: str, streams: int) -> float:
        options: Options = served.options | {"policy": policy}
        if answers := self.work.get(streams):
            return await worked(served.endpoint, options, served.asked(), streams, answers)
        settle_s = self.settle_s + self.settle_stream_s * streams
        window_s = self.window_s + self.window_stream_s * streams
        plan = loop.LoadPlan(concurrency=streams, duration_s=settle_s + window_s)
        return await windowed(served.endpoint, options, served.asked(), plan, settle_s, window_s)


FEW = (1, 2, 4, 8)  # streams with synthetic workers at which answers are counted, not seconds
MEASURING = {
    "synthetic": Measuring({streams: 8 * streams for streams in FEW}, 0.6, 0.02, 2.0, 0.02),
    "pair": Measuring({1: 6, 8: 24}, 1.0, 0.05, 10.0),  # equally many of every domain
}
QUICK_MEASURING = {
    "synthetic": Measuring({streams: 4 * streams for streams in FEW}, 0.3, 0.008, 1.0),
    "pair": Measuring({1: 3, 8: 12}, 0.4, 0.02, 1.2),
}


@dataclasses.dataclass(frozen=True)
class MeasuredCell:
    """A running cell, and its requests: the same for every policy."""

    endpoint: str
    options: Options
    asked: Callable[[], Iterator[Question]]


def main(argv: list[str] | None = None) -> int:
    """Prints its rows; 1 when a bar is missed."""
    parser = Program("policies", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer loads, fewer and shorter turns")
    add("--turns", type=int, help=f"of every policy at every load ({TURNS}; quick: {QUICK_TURNS})")
    add("--only", choices=LOADS, help="one of the rows")
    add("--drafter", help="folder or hub id: another one of the shipped target, in its pair's row")
    add("--loads", help="concurrencies, with commas")
    add("--file", type=Path, default=FILES / "paper.yaml", help="YAML of the synthetic pair")
    add("--save", type=Path, help="JSON lines of all measurements; goes on from them")
    args = parser.parse_args(argv)
    leave_in_order()
    measuring = QUICK_MEASURING if args.quick else MEASURING
    settings = {
        "quick": args.quick,
        "drafter": args.drafter,
        "file": args.file.name,
        "answers": ANSWERS,
    }
    book = SavedMeasurements(
        args.save, settings | {part: dataclasses.asdict(how) for part, how in measuring.items()}
    )
    loads = QUICK_LOADS if args.quick else LOADS
    code = 0
    for part, make in {"synthetic": _synthetic, "pair": _pair}.items():
        if args.only in (None, part):
            wanted = map(int, args.loads.split(",")) if args.loads else loads[part]
            with make(args) as served:
                rate = partial(measuring[part].tok_s, served)
                turns = args.turns or (QUICK_TURNS if args.quick else TURNS)
                value = asyncio.run(Tournament(part, rate, book, turns).run([*wanted]))
            code |= _row(part, args.drafter, value).show(as_json=args.json)
    return code


def _row(part: str, drafter: str | None, value: dict[str, dict[str, Any]]) -> Row:
    ratios = [point["ratio"] for point in value.values()]
    if part == "synthetic":
        pair, bar = "synthetic workers", f"never below {LEAST}x, above {SOMEWHERE}x somewhere"
        holds = min(ratios) >= LEAST and max(ratios) > SOMEWHERE
    else:
        pair = "shipped pair" if drafter is None else f"shipped target, {Path(drafter).name}"
        bar, holds = f"at least {PAIR_LEAST}x", min(ratios) >= PAIR_LEAST
    return Row(f"B4 {part}", f"adaptive against fixed lengths, {pair}, tok/s", value, bar, holds)


@contextmanager
def _synthetic(args: argparse.Namespace) -> Iterator[MeasuredCell]:
    scenario = Scenario(load_spec(args.file), concurrency=1, answer_tokens=ANSWERS)
    with cell(args.file) as running:
        yield MeasuredCell(running.endpoint, sampling(scenario), lambda: questions(scenario))


@contextmanager
def _pair(args: argparse.Namespace) -> Iterator[MeasuredCell]:
    pair = shipped_pair()
    if args.drafter is not None:
        pair = dataclasses.replace(pair, drafter=locate(args.drafter))
    with ProcessCell(pair.target, pair.drafter) as running:
        yield MeasuredCell(
            running.endpoint, Options(temperature=0.0, ignore_eos=True), lambda: _mixed(pair)
        )


def _mixed(pair: Pair) -> Iterator[Question]:
    """Prompts without end, domains in turns."""
    for question in itertools.cycle(prompts.built_in(render=question_renderer(str(pair.target)))):
        yield dataclasses.replace(question, max_tokens=PAIR_ANSWER)


if __name__ == "__main__":
    sys.exit(main())
