"""Answers in a form (JSON schema, expression, grammar), in four parts.

    python -m benchmarks.forms costs           # a mask of a slot and the first use of a schema, at a verifier
    python -m benchmarks.forms answers --part 1/12 --kept FILE
    python -m benchmarks.forms answers --kept FILE      # whatever of it is not done yet, then the row
    python -m benchmarks.forms forced          # of answers: tokens that a form left no choice for
    python -m benchmarks.forms hostile         # forty grammars that explode, over HTTP beside an honest stream

All but the costs ask the shipped pair over HTTP.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import httpx

from benchmarks.forms import answers, costs, hostile
from benchmarks.pair import leave_in_order
from deploy.processes import ProcessCell
from dspark import shipped


def main(argv: list[str] | None = None) -> int:
    """Prints a row; 1 when its bar is missed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.forms", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["costs", "answers", "forced", "hostile"])
    parser.add_argument("--target", default=shipped.TARGET, help=f"another one than the shipped ({shipped.TARGET})")
    parser.add_argument("--drafter", type=Path, help="for it")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every Nth case from the Ith on")
    parser.add_argument("--kept", type=Path, help="of answers: rows of cases, one a line; goes on behind them")
    parser.add_argument("--seconds", type=float, default=1e9, help="begins no case after so long")
    parser.add_argument("--alone", type=float, default=20.0, metavar="S", help="how long the stream is measured alone")
    parser.add_argument("--at-once", type=int, default=8, metavar="N", help="hostile requests of the second wave")
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    args = parser.parse_args(argv)
    leave_in_order()
    if args.what == "costs":
        return costs.row(args.target).show(as_json=args.json)
    pair = (args.target, args.drafter or shipped.drafter())
    with (
        ProcessCell(*pair, coordinator={"http": "127.0.0.1:0"}) as cell,
        httpx.Client(base_url=cell.http, timeout=120.0) as client,
    ):
        if args.what == "hostile":
            return hostile.row(cell.http, args.alone, args.at_once).show(as_json=args.json)
        asked = answers.Asked(client, args.part, args.seconds)
        row = asked.forced(cell) if args.what == "forced" else asked.compared(args.kept)
        return row.show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
