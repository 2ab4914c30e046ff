"""A program that is interrupted tidies up."""

import signal
import subprocess
import sys

import pytest

from tests.faults.pair import DRAFTER, TARGET


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_an_interrupted_demo_takes_its_cluster_down() -> None:
    words = ["--target", str(TARGET), "--drafter", str(DRAFTER)]
    command = [sys.executable, "-m", "benchmarks.demo", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("> "):  # the first turn of the conversation
                break
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
    assert demo.returncode == 130
    assert "taking the cluster down" in rest
    assert "down: " in rest
