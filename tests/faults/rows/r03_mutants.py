"""Row 3: bugs put where output can change, one at a time; the tests notice every one.

The everyday form takes every third of those in the rules, which spares processor time; the long
form takes all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.pair import ROOT
from benchmarks.row import Row
from faults.rows.program import Args, Rows, cpu_s

LEAST = 20
CPU_S = 60.0  # of the everyday form; children that die by their bug are counted too


def rows(args: Args) -> Rows:
    command = [sys.executable, "-m", "tests.mutation", "--json"]
    command += [] if args.long else ["--list=rules", "--every=3"]
    before = cpu_s()
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    seconds = cpu_s() - before
    if not done.stdout:
        raise SystemExit(f"tests.mutation ended with status {done.returncode}")
    value = {**json.loads(done.stdout)["value"], "cpu_seconds": round(seconds, 1), "all": args.long}
    quick = args.long or seconds < CPU_S
    holds = value["caught"] == value["bugs"] >= LEAST and quick
    bar = f"all of {LEAST} or more caught" + (
        "" if args.long else f", under {CPU_S:g} s of processor"
    )
    yield Row("3", "injected bugs are caught", value, bar, holds)
