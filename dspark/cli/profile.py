"""`dspark profile`: the running cell's pair as a file for `dspark simulate`.

Step times are those that its workers measured; acceptance is what `dspark evaluate` found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, open_client
from dspark.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from dspark.client import LaneStatus, MeasuredCost

DESCRIPTION = """Describes the pair that a cell serves, for `dspark simulate`: seconds of a
verification and of a draft as its workers measured them, and how often a drafted token is kept,
by domain, from METRICS, the metrics.json of `dspark evaluate`."""


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "profile", help="describe the served pair for dspark simulate", description=DESCRIPTION
    )
    add = parser.add_argument
    add("metrics", metavar="METRICS", type=Path, help="metrics.json of the drafter")
    add("--temperature", type=float, default=0, help="that METRICS was measured at (0)")
    add("--verifier", help="whose lane, by name (the first one)")
    add("--out", type=Path, help="YAML file (standard output)")
    add("--plot", type=Path, help="PNG or SVG: seconds of both kinds of pass")
    add_endpoint(parser)
    parser.set_defaults(run=_profile)


def _profile(args: argparse.Namespace) -> int:
    import yaml

    from dspark.plots import check_output
    from dspark.synthetic.spec import read_spec
    from dspark.whole_file import placed

    check_output("out", args.out, args.metrics)
    check_output("plot", args.plot, args.metrics)
    domains = _domains(args.metrics, args.temperature)
    with open_client(args) as client:
        lane = _lane(client.status().lanes, args.verifier)
    document = {
        "verify": _steps("verifier", "tokens", lane.verify_cost),
        "draft": _steps("drafter", "sequences", lane.draft_cost),
        "domains": domains,
    }
    read_spec(document)  # what could not be simulated is refused here
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None)
    if args.out is None:
        sys.stdout.write(text)
    else:
        with placed(args.out) as partial:
            partial.write_text(text, encoding="utf-8")
    if args.plot is not None:
        _draw(document, args.plot)
    return 0


def _domains(metrics: Path, temperature: float) -> dict[str, Any]:
    """Acceptance slot by slot of every domain, the plain mean of its data sets. ConfigError names
    what the file lacks."""
    from dspark.model.config_keys import read_json_file

    try:
        by_temperature = read_json_file(metrics)["temperatures"]
        measured = {float(name.removeprefix("T=")): each for name, each in by_temperature.items()}
        if temperature not in measured:
            there = ", ".join(f"{each:g}" for each in measured) or "no temperature"
            raise ConfigError(f"temperature: {metrics} has figures of {there}, not {temperature:g}")
        found: dict[str, list[list[float]]] = {}
        for each in measured[temperature]["datasets"].values():
            kept = [chance or 0.0 for chance in each["conditional"]]
            found.setdefault(each["domain"], []).append(kept)
        return {
            name: {
                "accept": [round(sum(slot) / len(slot), 4) for slot in zip(*sets, strict=True)],
                "concentration": 1.0,  # most slots nearly sure or nearly hopeless
            }
            for name, sets in found.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"metrics: {metrics} is no metrics.json of dspark evaluate") from None


def _lane(lanes: Sequence[LaneStatus], verifier: str | None) -> LaneStatus:
    for lane in lanes:
        if verifier in (None, lane.verifier):
            return lane
    names = ", ".join(lane.verifier for lane in lanes) or "none"
    raise Unavailable(f"no lane of {verifier or 'any verifier'}; the cell has {names}")


def _steps(role: str, unit: str, curve: MeasuredCost | None) -> dict[str, Any]:
    if curve is None:
        raise Unavailable(f"no {role} of this lane has measured its passes")
    return {
        unit: list(curve.tokens),
        "contexts": list(curve.contexts),
        "ms": [[round(1e3 * seconds, 4) for seconds in row] for row in curve.seconds],
    }


def _draw(document: Mapping[str, Any], path: Path) -> None:
    """A line per context: milliseconds by tokens of a verification, by sequences of a draft."""
    from dspark.plots import by_streams, panels, write

    figure, both = panels(2, (5.5, 4.2))
    for axes, role, unit in zip(both, ("verify", "draft"), ("tokens", "sequences"), strict=True):
        steps = document[role]
        for context, column in zip(steps["contexts"], zip(*steps["ms"], strict=True), strict=True):
            axes.plot(steps[unit], column, "o-", label=f"context {context}")
        axes.set(xlabel=f"{unit} of a pass", ylabel="milliseconds", title=role)
        by_streams(axes)
    write(figure, path)
