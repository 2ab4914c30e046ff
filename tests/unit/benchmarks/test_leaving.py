"""Nothing a benchmark starts outlives it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dspark.client.cell import is_alive
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
# A benchmark with one foreign server, which starts a process of its own: both write down their ids.
FOREIGN = (
    "import os, subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(os.getpid(), "
    "p.pid, flush=True); p.wait()"
)
# Whoever runs the tests may ignore SIGINT, as shells do for what they start in the background; a
# user does not.
BENCHMARK = f"""
import os, signal, subprocess, sys
from benchmarks.pair import leave_in_order
signal.signal(signal.SIGINT, signal.default_int_handler)
leave_in_order()
words = [sys.executable, "-m", "benchmarks.peers.leash", str(os.getpid())]
leash = subprocess.Popen([*words, sys.executable, "-c", {FOREIGN!r}])
try:
    leash.wait()
finally:
    leash.terminate()
    leash.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_foreign_server_and_its_children_end_with_the_benchmark(number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", BENCHMARK], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    process.send_signal(number)
    process.wait(60)
    wait_until(lambda: not any(map(is_alive, pids)))
    process.stdout.close()
