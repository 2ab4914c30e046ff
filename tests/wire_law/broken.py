"""Two builds whose law is wrong by one line, which the test has to find: `python -m
tests.wire_law.broken`."""

import argparse
import json
import os
import subprocess
import sys

from tests.mutation.bugs import ROOT, Bug
from tests.mutation.import_hook import environment, named

FOUND = 1e-6
SHOWS_IN = {  # a setting in which the build shows
    "q sent that was not sampled from": "block, fixed:3, T=1",
    "the bonus token drawn from p, not from what is left of it": "token, fixed:3, T=1",
}


def sampled_p(build: Bug, draws: int) -> float:
    words = ("--json", f"--draws={draws}", f"--only={SHOWS_IN[build.name]}")
    run = subprocess.run(
        [sys.executable, "-m", "tests.wire_law", *words],
        cwd=ROOT, env=os.environ | environment(build), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    lines = run.stdout.splitlines()
    if not lines:
        raise SystemExit(f"{build.name}: no row, exit {run.returncode}")
    return float(json.loads(lines[-1])["value"]["p_corrected"])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wire_law.broken", description=__doc__)
    parser.add_argument(
        "--draws", type=int, default=40_000, metavar="N", help="answers of a build (40000)"
    )
    args = parser.parse_args(argv)
    caught = True
    for build in map(named, SHOWS_IN):
        p = sampled_p(build, args.draws)
        caught &= p < FOUND
        print(
            json.dumps({"build": build.name, "row": "wire-law", "p": p, "caught": p < FOUND}),
            flush=True,
        )
    return 0 if caught else 1


if __name__ == "__main__":
    sys.exit(main())
