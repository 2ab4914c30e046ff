"""`make broken`: every build before its row, one JSON object a line; fails when one is not caught.

    python -m tests.broken [--only WORDS]

Each promise is first kept by the sound build, or there would be nothing to catch.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

import structlog

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.promises import PROMISES

from tests.broken.planting import BUILDS, planted
from tests.mutation.bugs import Bug

SEEDS = 6  # stories at most: one that touches the wrong line is enough


def caught(build: Bug) -> str:
    """How the row noticed; empty when it did not."""
    _, promise = build.by
    with planted(build):
        for seed in range(SEEDS):
            try:
                found = PROMISES[promise](seed)
            except Exception as error:  # a story that cannot be told is no row that holds
                found = [f"{type(error).__name__}: {error}"]
            if found:
                return found[0]
    return ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.broken", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="builds whose name has these words"
    )
    args = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    builds = [build for build in BUILDS if args.only in build.name]
    for promise in dict.fromkeys(build.by[1] for build in builds):
        if found := PROMISES[promise](0):
            raise SystemExit(f"{promise}: not kept by the sound build: {found[0]}")
    missed = 0
    for build in builds:
        why = caught(build)
        missed += not why
        print(
            json.dumps({"build": build.name, "row": build.by[0], "caught": bool(why)}), flush=True
        )
        print(f"    {why}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
