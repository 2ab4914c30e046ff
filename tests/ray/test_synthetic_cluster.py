"""A cluster without models: `dspark up --engine synthetic`, measured through the coordinator and a front end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ray

FILE = Path(__file__).parents[2] / "benchmarks" / "synthetic" / "flat.yaml"
LOAD = ("--concurrency", "2", "--requests", "4", "--input-len", "8", "--output-len", "16", "--temperature", "1")


def test_a_synthetic_cluster_comes_up_serves_a_load_and_goes_down(tmp_path: Path) -> None:
    def dspark(*words: str) -> str:
        command = [sys.executable, "-m", "dspark.cli.main", *words]
        environment = {**os.environ, "DSPARK_HOME": str(tmp_path)}
        ran = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    try:
        front = dspark("up", "--engine", "synthetic", "--synthetic", str(FILE), "--frontends", "1").strip()
        names = {process["name"] for process in json.loads(dspark("status", "--json"))["processes"]}
        assert {"coordinator/0", "verify/0", "draft/0"} <= names
        for where in ((), ("--endpoint", front)):
            (point,) = json.loads(dspark("bench", "--json", *where, *LOAD))["points"]
            assert (point["answers"], point["errors"]) == (4, {})
            assert point["tau"] > 1.0
    finally:
        dspark("down")
