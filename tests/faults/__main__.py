"""The checks of reliability, one JSON object each on stdout: `make faults`, and `make faults-long`
for the long ones.

    python -m tests.faults [--long] [--only 1,4,15]

A row is a program of its own, a module of `rows`: `python -m tests.faults.rows r04_malformed
--json`. It runs alone or beside another one. A row that fails, crashes or takes too long costs only
itself: what it had printed by then counts, and each statement that it owes is a row that says so.
All rows are saved in benchmarks/results, with the command, the commit, the machine and the date.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pair import leave_in_order
from benchmarks.row import Row, note
from dspark.loadgen.report import machine
from tests.faults.pair import ROOT
from tests.faults.rows.table import LONG, QUICK, Entry

RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 4.0  # times what a row usually takes
STOP_GRACE_S = 30.0
JOBS = 2  # rows at one time, of those that do not need to be alone

_printing = threading.Lock()
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Ended:
    entry: Entry
    rows: list[str]
    status: int


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the long rows, which take hours")
    parser.add_argument("--only", default="", metavar="ROW,ROW", help="these rows, e.g. 4,15")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FOLDER", help="where rows are saved"
    )
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    known = LONG if args.long else QUICK
    wanted = [word.strip() for word in args.only.split(",") if word.strip()]
    if unknown := set(wanted) - {entry.row for entry in known}:
        parser.error(
            f"--only: no {'long' if args.long else 'everyday'} row {', '.join(sorted(unknown))}"
        )
    leave_in_order()
    chosen = [entry for entry in known if not wanted or entry.row in wanted]
    began = time.monotonic()
    ended = run(chosen)
    note(f"{time.monotonic() - began:.0f} s in all")
    words = [*(["--long"] if args.long else ()), *(["--only", args.only] if args.only else ())]
    save(args.out / f"faults{'_long' if args.long else ''}.json", ended, words)
    whole = all(each.status == 0 and len(each.rows) == each.entry.statements for each in ended)
    return 0 if whole else 1


def save(path: Path, ended: Sequence[Ended], words: Sequence[str]) -> None:
    """A JSON object a row. Older rows of the programs that ran make room, others stay."""
    told = {"command": " ".join(["python -m tests.faults", *words]), **machine()}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    ran = {each.entry.words for each in ended}
    kept = [line for line in lines if json.loads(line).get("program") not in ran]
    for each in ended:
        kept += [
            json.dumps({**json.loads(line), "program": each.entry.words, **told})
            for line in each.rows
        ]
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def run(entries: Sequence[Entry]) -> list[Ended]:
    """Rows beside each other, then those that measure time, each alone."""
    with ThreadPoolExecutor(JOBS) as pool:
        begun = [pool.submit(_run, entry) for entry in entries if not entry.alone]
        try:
            ended = [one.result() for one in begun]
        except BaseException:  # the rows that run end with this program, and no other one begins
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(_running):
                stop(process)
            raise
    return [*ended, *(_run(entry) for entry in entries if entry.alone)]


def _run(entry: Entry) -> Ended:
    """Passes the program's rows through; says so in a row where it gave none."""
    command = [sys.executable, "-m", *entry.command]
    note(f"row {entry.row}: {' '.join(entry.command)}")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **os.environ, "PYTHONPATH": path}
    began, limit_s = time.monotonic(), PATIENCE * entry.usual_s
    # In a session of its own: what it started can be ended with it.
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, start_new_session=True
    )
    _running.add(process)
    try:
        out, _ = process.communicate(timeout=limit_s)
        said = f"ended with status {process.returncode}"
    except subprocess.TimeoutExpired:
        said = f"took longer than {limit_s:.0f} s"
        out = stop(process)
    except BaseException:
        stop(process)
        raise
    finally:
        _running.discard(process)
    rows = [line for line in out.decode("utf-8", "replace").splitlines() if is_row(line)]
    with _printing:
        for line in rows:
            print(line, flush=True)
        for number in range(len(rows), entry.statements):
            missing = f"statement {number + 1} of {entry.statements} is missing: the program {said}"
            Row(entry.row, entry.words, {"error": missing}, "it gives a row", False).show(
                as_json=True
            )
    note(f"row {entry.row}: {time.monotonic() - began:.0f} s")
    return Ended(entry, rows, process.returncode)


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
