"""`ray job submit -- dspark up`: the job ends when the cell serves, and the cell goes on without it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.head import Head, free_ports, stop_head
from deploy.process_tags import new_cell_id
from deploy.ray_environment import environment
from dspark.client import find_cell
from dspark.runtime.identity import write_token

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """(GCS address, dashboard's URL) of a cluster of others: it wants a token, and knows nothing of us."""
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    token = tmp_path / "ray_token"
    write_token(token)
    cell_id = new_cell_id()
    for key, value in environment(token, cell_id).items():
        monkeypatch.setenv(key, value)
    gcs, dashboard, *others = free_ports(8)
    names = ("node-manager-port", "object-manager-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port",
             "metrics-export-port", "runtime-env-agent-port")  # fmt: skip
    folder = Path("/tmp") / f"dspark-ray-{cell_id}"  # Ray's sockets want short paths
    folder.mkdir()
    command = [*RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}",
               "--include-dashboard=true", f"--dashboard-port={dashboard}", "--disable-usage-stats",
               "--object-store-memory=80000000", f"--temp-dir={folder}"]  # fmt: skip
    command += [f"--{name}={port}" for name, port in zip(names, others, strict=True)]
    with (folder / "head.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _await_dashboard(f"http://127.0.0.1:{dashboard}", token.read_text().strip())
        yield f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}"
    finally:
        assert stop_head(Head(f"127.0.0.1:{gcs}", process.pid, folder, cell_id)) == []
        process.wait(30)


def _await_dashboard(url: str, token: str) -> None:
    deadline = time.monotonic() + 120
    request = urllib.request.Request(f"{url}/api/version", headers={"Authorization": f"Bearer {token}"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < deadline, "the dashboard did not come up"
            time.sleep(0.5)


def _dspark(*words: str) -> str:
    command = [sys.executable, "-m", "dspark.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_job_brings_a_cell_up_that_outlives_it(
    cluster: tuple[str, str], golden_target: Path, golden_drafter: Path, tmp_path: Path
) -> None:
    gcs, dashboard = cluster
    variables = {"env_vars": {"DSPARK_HOME": os.environ["DSPARK_HOME"]}}
    file = tmp_path / "cell.yaml"
    file.write_text(json.dumps({"cluster": {"target": str(golden_target), "drafter": str(golden_drafter)}}))
    up = [sys.executable, "-m", "dspark.cli.main", "up", "-f", str(file), "--http", "none"]
    job = [*RAY, "job", "submit", "--address", dashboard, "--runtime-env-json", json.dumps(variables), "--"]
    done = subprocess.run([*job, *up], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert find_cell().ray_address == gcs, "the job's own cluster was joined"
    actors = _dspark("ray", "--", "list", "actors")
    assert {"dspark/coordinator/0", "dspark/verify/0", "dspark/draft/0"} <= set(re.findall(r"dspark/\w+/\d", actors))
    assert len(_dspark("generate", "--token-ids", "5,9", "--max-tokens", "4", "--ignore-eos").split()) == 4
    assert _dspark("scale", "draft=0") == "1 verifiers, 0 drafters\n"
    assert len(_dspark("generate", "--token-ids", "5,9", "--max-tokens", "4", "--ignore-eos").split()) == 4
    _dspark("down")
