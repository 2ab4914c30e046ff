"""`ray job submit -- dspark up`: the job ends when the cell serves, which goes on without it."""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.head import Head, start_head, stop_head
from deploy.process_tags import new_cell_id
from dspark.client import find_cell
from tests.commands import DSPARK, dspark
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

RAY = [sys.executable, "-m", "ray.scripts.scripts"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    """A cluster of others with a dashboard: it wants a token, and knows nothing of us."""
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path / "home"))
    environment = dict(os.environ)
    head = start_head(
        tmp_path / "ray_token", new_cell_id(), environment, lambda head: None, dashboard=True
    )
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    try:
        _await_dashboard(head.dashboard, (tmp_path / "ray_token").read_text().strip())
        yield head
    finally:
        assert stop_head(head) == []


def _await_dashboard(url: str, token: str) -> None:
    request = urllib.request.Request(
        f"{url}/api/version", headers={"Authorization": f"Bearer {token}"}
    )

    def came_up() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5):
            return True
        return False

    wait_until(came_up, 120)


def test_a_job_brings_a_cell_up_that_outlives_it(
    cluster: Head, golden_target: Path, golden_drafter: Path, tmp_path: Path
) -> None:
    variables = {"env_vars": {"DSPARK_HOME": os.environ["DSPARK_HOME"]}}
    file = tmp_path / "cell.yaml"
    file.write_text(
        json.dumps({"cluster": {"target": str(golden_target), "drafter": str(golden_drafter)}})
    )
    up = [*DSPARK, "up", "-f", str(file), "--http", "none"]
    job = [*RAY, "job", "submit", "--address", cluster.dashboard]
    job += ["--runtime-env-json", json.dumps(variables), "--"]
    done = subprocess.run([*job, *up], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert find_cell().ray_address == cluster.address, "the job's own cluster was joined"
    actors = dspark("ray", "--", "list", "actors")
    assert {"dspark/coordinator/0", "dspark/verify/0", "dspark/draft/0"} <= set(
        re.findall(r"dspark/\w+/\d", actors)
    )
    ask = ("generate", "--token-ids", "5,9", "--max-tokens", "4", "--ignore-eos")
    assert len(dspark(*ask).split()) == 4
    assert dspark("scale", "draft=0") == "1 verifiers, 0 drafters\n"
    assert len(dspark(*ask).split()) == 4
    dspark("down")
