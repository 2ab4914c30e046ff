"""The tests of the rules notice every bug that is put in; run in a process of its own, before anything is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("bugs", ["rules", "rounds"])
def test_every_bug_is_caught(bugs: str) -> None:
    command = [sys.executable, "-m", "benchmarks.mutants", "--json", "--list", bugs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=880)
    assert done.stdout, done.stderr[-2000:]
    value = json.loads(done.stdout)["value"]
    assert value["missed"] == [], [line for line in done.stderr.splitlines() if "MISSED" in line]
    assert value["caught"] == value["bugs"] >= 20
