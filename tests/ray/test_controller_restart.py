"""What operators said outlives the controller they said it to."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import SYNTHETIC, dspark
from tests.waiting import wait_until

pytestmark = pytest.mark.ray

LOSE = """
import time
from deploy.ray_environment import joined
from dspark.client import find_cell
from dspark.errors import Unavailable

cell = find_cell()
with joined(cell) as cluster:
    import ray
    ray.kill(cluster.controller(cell.name), no_restart=False)
    for left in range(60, -1, -1):  # until it is there again
        try:
            cluster.report(cell)
            break
        except Unavailable:
            if not left:
                raise
            time.sleep(0.5)
"""


@pytest.mark.slow
def test_a_controller_that_is_restarted_keeps_the_last_word_about_autoscaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSPARK_HOME", str(tmp_path))

    def until_switched(*words: str) -> None:
        """Every controller says at its beginning how it is switched, and at every change."""

        def said() -> list[str]:
            lines = dspark("logs", "controller").splitlines()
            return sorted(line.rpartition(" on=")[2] for line in lines if "autoscale.set" in line)

        wait_until(lambda: said() == sorted(words))

    try:
        dspark(*SYNTHETIC, "--autoscale")
        dspark("scale", "autoscale=off")
        until_switched("true", "false")
        subprocess.run([sys.executable, "-c", LOSE], check=True, timeout=120)
        until_switched("true", "false", "false")
    finally:
        dspark("down")
