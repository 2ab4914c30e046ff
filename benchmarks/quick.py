"""Short forms of rows B2 to B6, one JSON object each on stdout: `make bench-quick`.

    python -m benchmarks.quick [--only B2,B5]

Each row is a program of its own and runs alone, so that a row that fails or takes too long costs only itself: what it
had printed by then counts, and each statement that it owes is a row that says so. Figures of a short run are noisy:
they say whether something broke, not how fast it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

from benchmarks.pair import ROOT, leave_in_order
from benchmarks.row import Row, note

STOP_GRACE_S = 30.0
BUDGET_S = 590.0  # of all rows together


@dataclass(frozen=True)
class QuickProgram:
    """One program: its row, how many statements it prints, seconds kept for it whatever those before it take."""

    row: str
    module: str
    statements: int
    share_s: float


ENTRIES = (
    QuickProgram("B2", "benchmarks.peers", 2, 240),
    QuickProgram("B4", "benchmarks.policies", 2, 120),
    QuickProgram("B5", "benchmarks.round_overhead", 4, 90),
    QuickProgram("B6", "benchmarks.lane_rate", 1, 22),
    QuickProgram("B6", "benchmarks.front_end", 2, 95),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quick", description=__doc__)
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="these rows, e.g. B4,B5")
    args = parser.parse_args(argv)
    wanted = [word.strip() for word in args.only.split(",") if word.strip()]
    if unknown := set(wanted) - {entry.row for entry in ENTRIES}:
        parser.error(f"--only: no row {', '.join(sorted(unknown))}")
    leave_in_order()
    began, code = time.monotonic(), 0
    chosen = [entry for entry in ENTRIES if not wanted or entry.row in wanted]
    for place, entry in enumerate(chosen):
        kept = sum(later.share_s for later in chosen[place + 1 :])
        code |= _run(entry, max(entry.share_s, BUDGET_S - kept - (time.monotonic() - began)))
    note(f"{time.monotonic() - began:.0f} s in all")
    return code


def _run(entry: QuickProgram, limit_s: float) -> int:
    """Passes the program's rows through; says so in a row where it gave none."""
    command = [sys.executable, "-m", entry.module, "--quick", "--json"]
    note(f"row {entry.row}: {' '.join(command[1:])}")
    began = time.monotonic()
    # In a session of its own: what it started can be ended with it.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
    try:
        out, _ = process.communicate(timeout=limit_s)
        said = f"ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        said = f"took longer than {limit_s:.0f} s"
        out = stop(process)
    except BaseException:
        stop(process)
        raise
    rows = [line for line in out.decode("utf-8", "replace").splitlines() if is_row(line)]
    for line in rows:
        print(line, flush=True)
    note(f"row {entry.row}: {time.monotonic() - began:.0f} s")
    for number in range(len(rows), entry.statements):
        missing = f"statement {number + 1} of {entry.statements} is missing: the program {said}"
        Row(entry.row, entry.module, {"error": missing}, "it gives a row", False).show(as_json=True)
    return 0 if len(rows) == entry.statements and process.returncode == 0 else 1


def stop(process: subprocess.Popen[bytes]) -> bytes:
    """Ends the program in order, then whatever is left of its group."""
    process.terminate()
    try:
        out, _ = process.communicate(timeout=STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        out = b""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return out or b""


def is_row(line: str) -> bool:
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return isinstance(found, dict) and {"row", "name", "value", "bar", "holds"} <= found.keys()


if __name__ == "__main__":
    sys.exit(main())
