"""`dspark top`: a cell at work, seen from its coordinator, twice a second or as often as asked.

All rates are differences between two looks, so the first frame comes after one interval.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from dspark.cli.options import add_endpoint, open_client
from dspark.errors import DsparkError, Expired, Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

LoadWindow = Any  # a `deploy.load_report.LoadWindow`: rooms are imported inside functions alone

WINDOW_S = 10.0
_BARS = " ▁▂▃▄▅▆▇█"


def add_commands(commands: Any, shared: argparse.ArgumentParser) -> None:
    """Adds `top`."""
    parser = commands.add_parser("top", parents=[shared], help="watch a cell at work; Ctrl-C ends it")
    add_endpoint(parser)
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between looks (1)")
    parser.add_argument("--once", action="store_true", help="one frame, then end")
    parser.set_defaults(run=_top)


def _top(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from deploy.load_report import LoadSample, LoadWindow

    every = max(args.every, 0.1)
    window, console = LoadWindow(WINDOW_S), Console()
    with open_client(args) as client:
        window.add(LoadSample(time.monotonic(), client.status()))
        if args.once:
            time.sleep(every)
            window.add(LoadSample(time.monotonic(), client.status()))
            console.print(frame(window, client.endpoint))
            return 0
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                try:
                    window.add(LoadSample(time.monotonic(), client.status()))
                except (Unavailable, Expired) as error:
                    live.update(_gone(error), refresh=True)
                else:
                    live.update(frame(window, client.endpoint), refresh=True)


def frame(window: LoadWindow, endpoint: str) -> RenderableType:
    """What is shown: the cell, its pools, its lanes."""
    from rich.console import Group

    return Group(_cell(window, endpoint), _pools(window), _lanes(window))


def _cell(window: LoadWindow, endpoint: str) -> RenderableType:
    from rich.table import Table

    from deploy.load_report import PER_TOKEN, QUEUE, TTFT

    status = window.newest.status
    rounds = window.total("dspark_rounds_total")
    drafted = window.total("dspark_spec_decode_num_draft_tokens_total")
    verified = window.total("dspark_spec_decode_num_verified_tokens_total")
    accepted = window.total("dspark_spec_decode_num_accepted_tokens_total")
    table = Table(title=f"dspark {status.version} at {endpoint}", title_justify="left", box=None, pad_edge=False)
    for name in ("tok/s", "streams", "queued", "tau", "accepted", "verified", "ttft p50/p95", "per token", "queue p95"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{window.rate('dspark_generation_tokens_total'):.0f}",
        str(sum(lane.running + lane.waiting for lane in status.lanes)),
        f"{status.queued}/{status.queue_limit}",
        f"{1 + accepted / rounds:.2f}" if rounds else "-",
        f"{accepted / verified:.0%}" if verified else "-",
        f"{verified / drafted:.0%}" if drafted else "-",
        f"{_ms(window.percentile(TTFT, 0.5))}/{_ms(window.percentile(TTFT, 0.95))}",
        _ms(window.percentile(PER_TOKEN, 0.5)),
        _ms(window.percentile(QUEUE, 0.95)),
    )
    return table


def _pools(window: LoadWindow) -> RenderableType:
    from rich.table import Table

    busy = window.busy("verify") | window.busy("draft")
    table = Table(box=None, pad_edge=False)
    for name in ("process", "state", "busy", "sequences", "pages"):
        table.add_column(name)
    for process in window.newest.status.processes:
        share = busy.get(process.name)
        table.add_row(
            process.name,
            process.state + (f" ({process.detail})" if process.detail else ""),
            f"{_BARS[round(share * 8)] * 3} {share:.0%}" if share is not None else "",
            str(process.sequences),
            f"{process.pages_held}/{process.pages_total}" if process.pages_total else "",
            style="" if process.state == "serving" else "yellow",
        )
    return table


def _lanes(window: LoadWindow) -> RenderableType:
    from rich.table import Table

    from deploy.load_report import DRAFT_RPC, VERIFY_RPC

    table = Table(box=None, pad_edge=False)
    for name in ("lane", "running", "waiting", "policy", "drafters"):
        table.add_column(name)
    for lane in window.newest.status.lanes:
        names = ", ".join(lane.drafters) or "none"
        table.add_row(lane.verifier, str(lane.running), str(lane.waiting), lane.policy, names)
    rpc = f"draft {_ms(window.percentile(DRAFT_RPC, 0.5))}, verify {_ms(window.percentile(VERIFY_RPC, 0.5))}"
    table.caption = f"median round trips: {rpc}; drafts waited {_ms(window.draft_wait_s())} for a busy drafter"
    table.caption_justify = "left"
    return table


def _gone(error: DsparkError) -> RenderableType:
    from rich.text import Text

    return Text(f"{error}; trying again", style="red")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
