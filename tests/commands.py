"""The command `dspark`, as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from faults.pair import FLAT

DSPARK = (sys.executable, "-m", "dspark.cli.main")
SYNTHETIC = ("up", "--engine", "synthetic", "--synthetic", str(FLAT))
LIMIT_S = 240


def run(*words: str, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """environment: beside this process's own."""
    return subprocess.run(
        [*DSPARK, *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **environment},
    )


def dspark(*words: str, environment: Mapping[str, str] = {}) -> str:
    """What it prints where all is well."""
    ran = run(*words, environment=environment)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout
