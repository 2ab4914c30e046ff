"""Row 16: random commands against coordinator, pages and scheduler, with a model beside them; no
invariant breaks.

The machine is `tests.faults.machine`; what it ever finds becomes a fixed example in
tests/faults/test_found.py.
"""

import signal
import time
import traceback
from pathlib import Path

from hypothesis import Phase, seed

from benchmarks.row import note
from tests.faults.machine import CellMachine, walk
from tests.faults.rows.program import Args, Rows, statement

EACH = 40


def rows(args: Args) -> Rows:
    # an exception out of the machine would count as its finding
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    wanted = 100_000 if args.long else 1_000
    began, problem, number = time.monotonic(), "", 0
    how = {"derandomize": False, "phases": [Phase.generate, Phase.shrink], "print_blob": False}
    while CellMachine.steps < wanted and not problem:
        try:
            walk(seed(number)(type("Machine", (CellMachine,), {})), 10, EACH, **how)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = (
                f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno} "
                f"{where.line}: {error}"
            )
            problem = "\n".join([said, *getattr(error, "__notes__", [])])[:1500]
        number += 1
        note(f"{CellMachine.steps} steps")
    value = {
        "steps": CellMachine.steps,
        "engine": "pair",
        "violations": int(bool(problem)),
        "problem": problem,
        "seconds": round(time.monotonic() - began, 1),
    }
    invariants = "pages conserved, commits only grow and are the target's, bounds kept, all ends"
    bars = {f"{wanted} steps: {invariants}; 0 violations": not problem}
    yield statement("16", "random commands against a model", value, bars)
