"""`dspark top`: shows a cell at work, by its coordinator's status, every `--every` seconds.

All rates are differences between two statuses, so the first frame comes after one interval.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from dspark.cli.options import add_endpoint, open_client, span_s
from dspark.errors import ConfigError, Expired, Unavailable
from dspark.tables import aligned

LoadWindow = Any  # a `deploy.load_report.LoadWindow`: rooms are imported inside functions alone

WINDOW_S = 10.0
_BARS = " ▁▂▃▄▅▆▇█"


def add_commands(commands: Any) -> None:
    parser = commands.add_parser("top", help="watch a cell at work; Ctrl-C ends it")
    add_endpoint(parser)
    add = parser.add_argument
    add("--every", type=span_s, default=1.0, help="seconds between looks, at least 0.1")
    add("--once", action="store_true", help="one frame, then end")
    parser.set_defaults(run=_top)


def _top(args: argparse.Namespace) -> int:
    from deploy.load_report import LoadWindow

    every, window = max(args.every, 0.1), LoadWindow(WINDOW_S)

    def look() -> list[str]:
        # anew each time: a cell that is started again has other addresses
        with open_client(args) as client:
            window.add(time.monotonic(), client.status())
            return frame(window, client.endpoint)

    look()
    if args.once:
        time.sleep(every)
        print(*look(), sep="\n")
        return 0

    from rich.live import Live
    from rich.text import Text

    with Live(screen=sys.stdout.isatty(), auto_refresh=False) as live:
        while True:
            time.sleep(every)
            try:
                lines = look()
            except (Unavailable, Expired, ConfigError) as error:  # certificates may be changing
                lines = [f"{error}; trying again"]
            live.update(Text("\n".join(lines), no_wrap=True), refresh=True)


def frame(window: LoadWindow, endpoint: str) -> list[str]:
    """The lines of one frame: the cell, its pools, its lanes."""
    title = f"dspark {window.newest.version} at {endpoint}"
    return [title, *_cell(window), "", *_pools(window), "", *_lanes(window)]


def _cell(window: LoadWindow) -> list[str]:
    from deploy.load_report import PER_TOKEN, QUEUE, TTFT

    status = window.newest
    rounds = window.total("dspark_rounds_total")
    drafted = window.total("dspark_spec_decode_num_draft_tokens_total")
    verified = window.total("dspark_spec_decode_num_verified_tokens_total")
    accepted = window.total("dspark_spec_decode_num_accepted_tokens_total")
    shown = {
        "tok/s": f"{window.rate('dspark_generation_tokens_total'):.0f}",
        "streams": str(sum(lane.running + lane.waiting for lane in status.lanes)),
        "queued": f"{status.queued}/{status.queue_limit}",
        "tau": f"{1 + accepted / rounds:.2f}" if rounds else "-",
        "accepted": f"{accepted / verified:.0%}" if verified else "-",
        "verified": f"{verified / drafted:.0%}" if drafted else "-",
        "ttft p50/p95": f"{_ms(window.percentile(TTFT, 0.5))}/{_ms(window.percentile(TTFT, 0.95))}",
        "per token": _ms(window.percentile(PER_TOKEN, 0.5)),
        "queue p95": _ms(window.percentile(QUEUE, 0.95)),
    }
    return aligned([tuple(shown), tuple(shown.values())], right=True)


def _pools(window: LoadWindow) -> list[str]:
    busy = window.busy("verify") | window.busy("draft")
    rows = [("process", "busy", "sequences", "pages", "state")]
    for process in window.newest.processes:
        share = busy.get(process.name)
        bar = f"{_BARS[round(share * 8)] * 3} {share:.0%}" if share is not None else ""
        pages = f"{process.pages_held}/{process.pages_total}" if process.pages_total else ""
        rows.append((process.name, bar, str(process.sequences), pages, process.condition))
    return aligned(rows)


def _lanes(window: LoadWindow) -> list[str]:
    from deploy.load_report import DRAFT_RPC, VERIFY_RPC

    rows = [("lane", "running", "waiting", "policy", "drafters")]
    for lane in window.newest.lanes:
        names = ", ".join(lane.drafters) or "none"
        rows.append((lane.verifier, str(lane.running), str(lane.waiting), lane.policy, names))
    blocks, verified = (_ms(window.percentile(name, 0.5)) for name in (DRAFT_RPC, VERIFY_RPC))
    waited = f"drafts waited {_ms(window.draft_wait_s())} for a busy drafter"
    return [
        *aligned(rows),
        f"medians: blocks came {blocks} after their orders, a pass took {verified}; {waited}",
    ]


def _ms(seconds: float | None) -> str:
    return (
        "-" if seconds is None else f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
    )
