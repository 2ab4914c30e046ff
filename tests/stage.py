"""A stage of the tests: two files at a time, then what failed once more alone.

    python -m tests.stage ARGUMENTS_OF_PYTEST

Two cores hold several processes of two files then, so a test that fails may only be crowded. What fails alone as well
is red, and so is a stage in which more fails than crowding explains.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CROWDED_AT_MOST = 20
TESTS_FAILED = 1  # pytest's exit status; any other that is not 0 says that it could not run


def run(asked: list[str], *, cwd: Path | None = None) -> int:
    """Exit status of the stage."""
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-o", f"cache_dir={cache}", *asked]
        status = subprocess.run([*pytest, "-n", "2", "--dist", "loadfile"], cwd=cwd).returncode
        if status != TESTS_FAILED:
            return status
        failed = sorted(json.loads((Path(cache) / "v" / "cache" / "lastfailed").read_text()))
        print(f"\n==== {len(failed)} failed beside others", *failed, sep="\n", flush=True)
        if len(failed) > CROWDED_AT_MOST:
            return status
        print("==== run again alone, one process:", flush=True)
        again = ["-n", "0", "--last-failed", "--last-failed-no-failures", "none"]
        status = subprocess.run([*pytest, *again], cwd=cwd).returncode
        print(f"==== {len(failed)} failed beside others, run again alone: {'red' if status else 'green'}", flush=True)
        return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
