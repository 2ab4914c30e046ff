"""The simulator against real services around synthetic workers: `python -m
tests.simulator_fidelity`, on idle cores.

One constant is fitted: the factor on the simulator's hops, so that it meets one measured point. The
other points are then predicted. Points: policies, loads, an open loop, two verifiers that share a
drafter, a coordinator and the cores of this machine. All points are measured in turns, so that what
else the machine does falls on each of them; a point is the median over the turns.
"""

import argparse
import asyncio
import dataclasses
import math
import os
import random
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import structlog

from benchmarks.pair import leave_in_order
from benchmarks.real_cell import FILES, cell, questions, sampling, windowed
from benchmarks.row import Row, note
from coordinator.simulation.run import simulate
from coordinator.simulation.scenario import Scenario
from coordinator.simulation.world import HopDelays
from dspark.loadgen.run import LoadPlan
from dspark.synthetic.spec import load_spec

BAR = 0.05
TURNS = 5


def main() -> int:
    """Prints the row; 1 when the bar is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON row per line")
    parser.add_argument(
        "--quick", action="store_true", help=f"shorter windows, and one turn instead of {TURNS}"
    )
    args = parser.parse_args()
    leave_in_order()
    # A line per request is a service's log; the simulated coordinator writes none.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return asyncio.run(_predictions(args.quick)).show(as_json=args.json)


def _points(file: Path, quick: bool) -> tuple[Scenario, list[Scenario]]:
    """(the point that is fitted, those that are predicted)."""
    base = Scenario(
        load_spec(file),
        concurrency=16,
        cores=len(os.sched_getaffinity(0)),
        answer_tokens=(64, 192),
        warmup_s=2.0 if quick else 4.0,
        window_s=5.0 if quick else 16.0,
    )
    return base, [
        dataclasses.replace(base, concurrency=1),
        dataclasses.replace(base, concurrency=4, policy="off"),
        dataclasses.replace(base, concurrency=32, policy="fixed:5"),
        dataclasses.replace(base, concurrency=24, verifiers=2),
        dataclasses.replace(base, concurrency=0, rate=4.0),
    ]


async def _predictions(quick: bool) -> Row:
    file = FILES / "paper.yaml"
    fitted, predicted = _points(file, quick)
    everything = [fitted, *predicted]
    found: list[list[float]] = [[] for _ in everything]
    with ExitStack() as stack:
        cells = {
            verifiers: stack.enter_context(cell(file, verifiers=verifiers))
            for verifiers in sorted({scenario.verifiers for scenario in everything})
        }
        for _ in range(1 if quick else TURNS):
            for scenario, rates in zip(everything, found, strict=True):
                rates.append(await measure(cells[scenario.verifiers].endpoint, scenario))
    measured = list(map(statistics.median, found))
    for scenario, rates in zip(everything, found, strict=True):
        note(f"measured {_name(scenario)}: {list(map(round, rates))} tok/s")
    hops, factor = await asyncio.to_thread(_fit, fitted, measured[0])
    note(f"fitted: hops x {factor:.2f}: {hops}")
    value: dict[str, Any] = {"hops_factor": round(factor, 3), "points": {}}
    value["fitted_at"] = {_name(fitted): round(measured[0], 1)}
    worst = 0.0
    for index, scenario in enumerate(predicted, 1):
        said = await asyncio.to_thread(simulate, dataclasses.replace(scenario, hops=hops))
        off = said["tok_s"] / measured[index] - 1.0
        worst = max(worst, abs(off))
        value["points"][_name(scenario)] = {
            "measured": round(measured[index], 1),
            "of_turns": [round(rate, 1) for rate in found[index]],
            "simulated": said["tok_s"],
            "off": round(off, 4),
        }
        note(
            f"{_name(scenario)}: simulated {said['tok_s']:.0f}, measured {measured[index]:.0f}, "
            f"{off:+.1%}"
        )
    value["worst"] = round(worst, 4)
    return Row(
        "simulator",
        "simulator against real services on synthetic workers, tok/s",
        value,
        "within 5 %",
        worst <= BAR,
    )


async def measure(endpoint: str, scenario: Scenario) -> float:
    """Tokens a second under the load of a scenario, for as many real seconds. Raises when a request
    failed."""
    longest_s = scenario.warmup_s + scenario.window_s
    plan = LoadPlan(
        concurrency=scenario.concurrency,
        rate=scenario.rate,
        requests=math.ceil(2 * scenario.rate * longest_s) + 8
        if scenario.rate
        else 0,  # more than arrive in time
        duration_s=longest_s,
        seed=scenario.seed,
    )
    settle_s = scenario.warmup_s
    if scenario.rate:
        # it counts from the first arrival, the scenario from when the first gap began
        settle_s -= random.Random(f"arrivals/{scenario.seed}").expovariate(scenario.rate)
    return await windowed(
        endpoint, sampling(scenario), questions(scenario), plan, settle_s, scenario.window_s
    )


def scaled(factor: float) -> HopDelays:
    """Everything that lies between, so many times as slow."""
    return HopDelays(
        **{name: factor * value for name, value in dataclasses.asdict(HopDelays()).items()}
    )


def _fit(scenario: Scenario, tok_s: float) -> tuple[HopDelays, float]:
    """The factor on the hops at which the simulator meets one measured rate; it falls as hops
    grow."""
    low, high = 0.05, 20.0
    for _ in range(7):
        middle = (low * high) ** 0.5
        said = simulate(dataclasses.replace(scenario, hops=scaled(middle)))
        low, high = (middle, high) if said["tok_s"] > tok_s else (low, middle)
    factor = (low * high) ** 0.5
    return scaled(factor), factor


def _name(scenario: Scenario) -> str:
    load = (
        f"{scenario.concurrency} streams"
        if scenario.concurrency
        else f"{scenario.rate:g} requests/s"
    )
    return f"{scenario.policy}, {load}, {scenario.verifiers} verifiers, {scenario.drafters} drafter"


if __name__ == "__main__":
    sys.exit(main())
