"""Row 3: bugs put where output can change, one at a time; the tests notice every one.

The everyday form takes every third of those in the rules, which spares processor time; the long
form takes all.
"""

import json
import os
import subprocess
import sys

from benchmarks.pair import ROOT
from tests.faults.rows.program import Args, Rows, statement

LEAST = 20
CPU_S = 60.0  # of the everyday form; children that die by their bug are counted too


def rows(args: Args) -> Rows:
    command = [sys.executable, "-m", "tests.mutation", "--json"]
    command += [] if args.long else ["--list=rules", "--every=3"]
    before = sum(os.times()[2:4])  # seconds of processor time of children that have ended
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    seconds = sum(os.times()[2:4]) - before
    if not done.stdout:
        raise SystemExit(f"tests.mutation ended with status {done.returncode}")
    value = {**json.loads(done.stdout)["value"], "cpu_seconds": round(seconds, 1), "all": args.long}
    bars = {f"all of {LEAST} or more caught": value["caught"] == value["bugs"] >= LEAST}
    if not args.long:
        bars[f"under {CPU_S:g} s of processor"] = seconds < CPU_S
    yield statement("3", "injected bugs are caught", value, bars)
