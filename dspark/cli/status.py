"""`dspark status`: every process and lane, as the coordinator sees them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, open_client
from dspark.errors import DsparkError, Expired, Unavailable

if TYPE_CHECKING:
    from dspark.client import CellStatus, MeasuredCost

PROCESS = (
    "role",
    "name",
    "endpoint",
    "pid",
    "incarnation",
    "state",
    "sequences",
    "pages_held",
    "pages_total",
    "metrics_port",
)


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `status`."""
    parser = commands.add_parser("status", parents=[shared], help="list every process and lane")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--explain", metavar="REQUEST", help="explain a request by its id: its rounds as it runs, and its end"
    )
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="with --explain: so many; 0: until it ends")
    add_endpoint(parser)
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    with open_client(args) as client:
        if args.explain:
            from dspark.cli.explaining import explain

            return explain(client, args.explain, rounds=max(args.rounds, 0), as_json=args.json)
        try:
            reply = client.status()
        except (Unavailable, Expired) as error:
            raise _unreachable(client.endpoint, error, by_hand=args.endpoint is not None) from None
    shape = as_json(client.endpoint, reply)
    if args.json:
        print(json.dumps(shape, indent=2))
    else:
        _print(shape)
    return 0


def _unreachable(endpoint: str, error: DsparkError, *, by_hand: bool) -> DsparkError:
    """Says what is known about why nobody answers."""
    if by_hand:
        return Unavailable(f"the coordinator at {endpoint} is unreachable ({error})")
    from dspark.client.cell import find_cell, is_alive

    cell = find_cell()
    if cell.ray_pid and not is_alive(cell.ray_pid):
        return Unavailable(
            f"the cluster of this state folder is gone (its process {cell.ray_pid} has ended); "
            "`dspark down` clears what is left"
        )
    logs = f"; logs are under {cell.ray_dir}" if cell.ray_dir else ""
    return Unavailable(
        f"the coordinator at {endpoint} is unreachable, while its Ray cluster still runs: it may be restarting{logs}"
    )


def as_json(endpoint: str, reply: CellStatus) -> dict[str, Any]:
    """The stable shape `--json` prints."""
    return {
        "endpoint": endpoint,
        "version": reply.version,
        "queued": reply.queued,
        "queue_limit": reply.queue_limit,
        "processes": [
            {name: getattr(process, name) for name in PROCESS} | {"model": process.model, "detail": process.detail}
            for process in reply.processes
        ],
        "lanes": [
            {
                "verifier": lane.verifier,
                "drafters": list(lane.drafters),
                "running": lane.running,
                "waiting": lane.waiting,
                "policy": lane.policy,
                "tau": lane.mean_acceptance_length,
                "rounds": lane.rounds,
                "attention_path": lane.attention_path,
                "cost_curve_in_force": lane.cost_curve_in_force,
                "verify_cost": _curve(lane.verify_cost),
                "draft_cost": _curve(lane.draft_cost),
            }
            for lane in reply.lanes
        ],
    }


def _curve(curve: MeasuredCost | None) -> dict[str, Any] | None:
    """{tokens, contexts, seconds as rows per token count, source, borrowed}; None when there is no curve."""
    from dataclasses import asdict

    return None if curve is None else {name: _plain(value) for name, value in asdict(curve).items()}


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _print(shape: dict[str, Any]) -> None:
    rows = [
        (
            process["role"],
            process["name"],
            process["state"] + (f" ({process['detail']})" if process["detail"] else ""),
            process["endpoint"],
            str(process["pid"]),
            str(process["incarnation"]),
            str(process["sequences"]),
            f"{process['pages_held']}/{process['pages_total']}",
        )
        for process in shape["processes"]
    ]
    _table(("role", "name", "state", "endpoint", "pid", "incarnation", "sequences", "pages"), rows)
    for lane in shape["lanes"]:
        print()
        print(f"lane of {lane['verifier']}: drafters {', '.join(lane['drafters']) or 'none'}; policy {lane['policy']}")
        print(
            f"  running {lane['running']}, waiting {lane['waiting']}; {lane['rounds']} rounds, "
            f"tau {lane['tau']:.2f}; attention {lane['attention_path'] or 'unknown'}"
        )
        if not lane["cost_curve_in_force"]:
            print("  no cost curve in force: adaptive sequences verify everything")
        for kind, unit in (("verify", "tokens"), ("draft", "sequences")):
            curve = lane[f"{kind}_cost"]
            if curve:
                print(f"  {kind} cost, ms a step ({curve['source']}; rows {unit}, columns context)")
                _table(("", *map(str, curve["contexts"])), _cost_rows(curve), indent=4)
                if curve["borrowed"]:
                    print("    * not measured: a neighbour's value")
    print(f"\n{shape['queued']} of at most {shape['queue_limit']} requests wait for admission")


def _cost_rows(curve: dict[str, Any]) -> list[tuple[str, ...]]:
    borrowed, width = set(curve["borrowed"]), len(curve["contexts"])
    return [
        (
            str(tokens),
            *(f"{1000 * value:.2f}" + "*" * (index * width + column in borrowed) for column, value in enumerate(row)),
        )
        for index, (tokens, row) in enumerate(zip(curve["tokens"], curve["seconds"], strict=True))
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, indent: int = 0) -> None:
    """Aligned columns; in colour where the terminal and `rich` allow it."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    for number, row in enumerate((header, *rows)):
        line = " " * indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        if number == 0:
            _emphasise(line.rstrip())
        else:
            print(line.rstrip())


def _emphasise(line: str) -> None:
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        print(line)
        return
    Console(soft_wrap=True).print(line, style="bold", highlight=False, markup=False)
