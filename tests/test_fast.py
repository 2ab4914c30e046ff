"""`make test-fast` runs what it names: no module that it imports needs torch."""

import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_fast_tests_can_be_collected() -> None:
    said = subprocess.check_output(["make", "-n", "test-fast"], cwd=ROOT, text=True)
    (line,) = (line for line in said.splitlines() if "tests.no_torch" in line)
    words = shlex.split(line)[1:]
    words[words.index("-n") + 1] = "0"
    done = subprocess.run(
        [sys.executable, *words, "--collect-only", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]
