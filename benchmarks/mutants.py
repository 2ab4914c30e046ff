"""Bugs put into the decoding rules, the scheduler, the race, the shaping and the rounds, one at a time: the tests catch
every one.

The bugs and the tests that must see them are listed in `tests/mutation/mutants.py` and `round_mutants.py` there.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

from benchmarks.row import Row, note

LIMIT_S = 120.0
LEAST = 20


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument("--quick", action="store_true", help="every third bug")
    parser.add_argument("--only", default="", metavar="TEXT", help="bugs whose name or file holds this")
    parser.add_argument("--list", choices=("rules", "rounds"), help="one of the two lists")
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "mutation"))
    runner = importlib.import_module("runner")
    given = runner.LISTS[args.list] if args.list else runner.MUTANTS
    chosen = [mutant for mutant in given if args.only in mutant.name or args.only in mutant.file]
    began = time.monotonic()
    outcomes = runner.run(chosen[::3] if args.quick else chosen)
    seconds = time.monotonic() - began
    for outcome in outcomes:
        note(f"{'caught' if outcome.caught else 'MISSED'} in {outcome.seconds:5.1f} s: {outcome.name} {outcome.why}")
    caught = sum(outcome.caught for outcome in outcomes)
    value = {
        "bugs": len(outcomes),
        "caught": caught,
        "seconds": round(seconds, 1),
        "missed": [outcome.name for outcome in outcomes if not outcome.caught],
    }
    whole = args.quick or args.only or args.list or len(outcomes) >= LEAST
    holds = caught == len(outcomes) and bool(whole) and seconds < LIMIT_S
    bar = f"all of {LEAST} bugs or more, under {LIMIT_S:g} s"
    return Row("3.9", "bugs put into the rules are caught", value, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
