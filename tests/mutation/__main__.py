"""Bugs put into every place where output can change, one at a time: the tests of the place catch
every one.

Says `N of M caught`; bugs that cannot change output are listed with their reasons, and are no
part of M.
"""

import argparse
import os
import sys
import time

from benchmarks.row import Row, note
from tests.mutation.bugs import BUGS, LISTS
from tests.mutation.runner import outcomes

LEAST = 120


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON row")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="every N-th bug of those chosen (1)"
    )
    parser.add_argument(
        "--only", default="", metavar="TEXT,TEXT", help="bugs whose name or file holds one of these"
    )
    parser.add_argument("--list", choices=LISTS, help="one of the lists alone")
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="bugs tried at the same time (2)"
    )
    args = parser.parse_args(argv)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given = LISTS[args.list] if args.list else BUGS
    texts = args.only.split(",")
    found = [bug for bug in given if any(text in bug.name + bug.file for text in texts)]
    harmless = {bug.name: bug.harmless for bug in found if bug.harmless}
    chosen = [bug for bug in found if not bug.harmless][:: args.every]
    began = time.monotonic()
    missed = []
    for outcome in outcomes(chosen, args.jobs):
        note(
            f"{'caught' if outcome.caught else 'MISSED'} in {outcome.seconds:5.1f} s: "
            f"{outcome.name} {outcome.why}"
        )
        missed += [] if outcome.caught else [outcome.name]
    for name, why in harmless.items():
        note(f"cannot change output: {name}: {why}")
    note(f"{len(chosen) - len(missed)} of {len(chosen)} caught")
    value = {
        "bugs": len(chosen),
        "caught": len(chosen) - len(missed),
        "seconds": round(time.monotonic() - began, 1),
        "missed": missed,
        "harmless": harmless,
    }
    least = 1 if args.every > 1 or args.only or args.list else LEAST
    name, bar = "bugs put where output can change are caught", f"all of {least} or more"
    holds = not missed and len(chosen) >= least
    return Row("3", name, value, bar, holds).show(as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
