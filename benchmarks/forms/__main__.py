"""Answers in a form (JSON schema, expression, grammar), in four parts.

    python -m benchmarks.forms costs    # a mask of a slot, the first use of a schema, at a verifier
    python -m benchmarks.forms answers --part 1/12 --kept FILE
    python -m benchmarks.forms answers --kept FILE    # what is not done yet, then the row
    python -m benchmarks.forms forced    # tokens of answers that a form left no choice for
    python -m benchmarks.forms hostile   # forty grammars that explode, beside an honest stream

All but the costs ask the shipped pair over HTTP.
"""

from __future__ import annotations

import sys
from pathlib import Path

import httpx

from benchmarks.forms import answers, costs, hostile
from benchmarks.pair import add_arguments, chosen
from benchmarks.row import Program
from deploy.processes import ProcessCell


def main(argv: list[str] | None = None) -> int:
    """Prints a row; 1 when its bar is missed."""
    parser = Program("forms", __doc__)
    add = parser.add_argument
    add("what", choices=["costs", "answers", "forced", "hostile"])
    add_arguments(parser)
    add("--part", default="1/1", metavar="I/N", help="every Nth case from the Ith on")
    add("--kept", type=Path, help="of answers: rows of cases, one a line; goes on behind them")
    add("--alone", type=float, default=20.0, help="seconds of the stream by itself")
    args = parser.parse_args(argv)
    pair = chosen(args)
    if args.what == "costs":
        return costs.row(pair.target).show(as_json=args.json)
    with (
        ProcessCell(pair.target, pair.drafter, coordinator={"http": "127.0.0.1:0"}) as cell,
        httpx.Client(base_url=cell.http, timeout=120.0) as client,
    ):
        if args.what == "hostile":
            row = hostile.row(cell.http, args.alone)
        elif args.what == "forced":
            row = answers.forced(client, answers.part(args.part), cell)
        else:
            row = answers.compared(client, answers.part(args.part), args.kept)
        return row.show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
