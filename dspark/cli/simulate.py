"""`dspark simulate`: runs the coordinator's own code with pools and loads of any size, in simulated
time."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dspark.cli.options import naturals, numbers_above_0, positives, span_s, wait_s
from dspark.numerals import whole_in

DESCRIPTION = """Simulates verifiers and drafters of given step times and acceptance probabilities
(FILE, see docs/simulator.md) under the coordinator's own admission, lanes and scheduler, in
simulated time. Lists make a sweep: every combination is simulated."""


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "simulate", help="size pools in simulated time", description=DESCRIPTION
    )
    parser.add_argument("file", type=Path, help="YAML of a synthetic pair")
    load = parser.add_argument_group("load")
    loop = load.add_mutually_exclusive_group()
    add = loop.add_argument
    add("--concurrency", type=positives, help="users, each asking again when answered (1,8,64)")
    add("--rate", type=numbers_above_0, help="requests a second, Poisson arrivals")
    add = load.add_argument
    add("--input-len", type=_span, default="32", metavar="A[..B]", help="tokens of a prompt")
    add("--output-len", type=_span, default="128", metavar="A[..B]", help="tokens of an answer")
    add("--temperature", type=float, default=1, help="of all requests")
    add("--policy", default="adaptive", help="policies, one series each")
    add("--seed", type=int, default=0, help="of arrivals, lengths and tokens")
    add("--warmup", type=wait_s, default=5, help="simulated seconds before the window")
    add("--duration", type=span_s, default=20, help="simulated seconds of the window")
    pools = parser.add_argument_group("pools")
    add = pools.add_argument
    add("--verifiers", type=positives, default="1", help="verifiers")
    add("--drafters", type=naturals, default="1", help="drafters; each serves all")
    add("--coordinators", type=int, default=1, help="coordinators that share the lanes")
    add("--cores", type=int, default=0, help="that all processes share; 0: one each")
    add("--kv-tokens", type=int, default=0, help="token slots of a verifier; 0: no limit")
    add("--prefill-chunk", type=int, default=256, help="prompt tokens of one pass")
    add("--cohorts", type=int, default=0, choices=[0, 1, 2], help="of a lane; 0: by measurement")
    for pool in ("verifiers", "drafters"):
        add(f"--lose-{pool}", type=numbers_above_0, default=(), help="when one is lost for good")
    hops = parser.add_argument_group(
        "what lies between, in microseconds; docs/simulator.md says how to measure it"
    )
    add = hops.add_argument
    add("--hop-us", type=float, help="one way")
    add("--worker-us", type=float, help="a worker's processor time for a command")
    add("--worker-sequence-us", type=float, help="more for each sequence of it")
    add("--round-us", type=float, help="the coordinator's processor time for a reply")
    add("--round-sequence-us", type=float, help="more for each sequence of it")
    out = parser.add_argument_group("output")
    add = out.add_argument
    add("--json", action="store_true", help="one JSON object instead of a table")
    add("--plot", type=Path, help="PNG or SVG: speed, budget and shares of time")
    parser.set_defaults(run=_simulate)


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    try:
        span = whole_in(low), whole_in(high or low)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither a number nor a span such as 32..512"
        ) from None
    if not 1 <= span[0] <= span[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of lengths from 1 on")
    return span


def _simulate(args: argparse.Namespace) -> int:
    import dataclasses

    import structlog

    from coordinator.config import CoordinatorConfig
    from coordinator.simulation.run import simulate
    from coordinator.simulation.scenario import Scenario, scenarios
    from coordinator.simulation.world import HopDelays
    from dspark.loadgen.report import draw, table
    from dspark.plots import check_output
    from dspark.synthetic.spec import load_spec

    # Drops the log lines about single requests, which only a service needs.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    check_output("plot", args.plot, args.file)
    given = {name: us for name, us in vars(args).items() if name.endswith("_us") and us is not None}
    hops = HopDelays(**{name.removesuffix("us") + "s": us * 1e-6 for name, us in given.items()})
    axes: dict[str, Any] = {
        "policy": [part.strip() for part in args.policy.split(",")],
        "verifiers": args.verifiers,
        "drafters": args.drafters,
        **({"rate": args.rate} if args.rate else {"concurrency": args.concurrency or [1, 8, 64]}),
    }
    base = Scenario(
        load_spec(args.file),
        concurrency=1,
        verifiers=max(args.verifiers),
        drafters=max(args.drafters),
        coordinators=args.coordinators,
        cores=args.cores,
        prompt_tokens=args.input_len,
        answer_tokens=args.output_len,
        warmup_s=args.warmup,
        window_s=args.duration,
        temperature=args.temperature,
        seed=args.seed,
        hops=hops,
        config=CoordinatorConfig(cohorts=args.cohorts),
        prefill_chunk=args.prefill_chunk,
        kv_tokens=args.kv_tokens,
        verifiers_lost_s=tuple(args.lose_verifiers),
        drafters_lost_s=tuple(args.lose_drafters),
    )
    points = []
    # a list: all scenarios are checked before the first one runs
    for scenario in list(scenarios(base, axes)):
        points.append(point := simulate(scenario))
        load = point["concurrency"] or point["rate"]
        print(
            f"{point['series']} at {load}: {point['tok_s']:,.0f} tok/s, {point['wall_s']} s",
            file=sys.stderr,
        )
    if args.plot is not None:
        draw(points, args.plot)
    told = {"file": str(args.file), "hops": dataclasses.asdict(hops), "points": points}
    print(json.dumps(told) if args.json else table(points))
    return 0
