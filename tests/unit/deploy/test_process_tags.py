"""Ending exactly the processes of a cell."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from deploy.process_tags import VARIABLE, end_all, marked, new_cell_id
from dspark.client.cell import is_alive
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="marks are read from /proc")

SLEEP = "import time; print(flush=True); time.sleep(600)"
# A child in a session of its own, as Ray's workers are, under a leader that refuses SIGTERM.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
words = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(words, start_new_session=True)
print(child.pid, flush=True)
time.sleep(600)
"""


# A child that carries the mark until its leader ends: then it becomes another program without.
UNMARKED = """
import os, sys, time
leader = os.getpid()
if not os.fork():
    os.setsid()
    print(flush=True)  # from here on the leader's group is not its own
    while os.getppid() == leader:
        time.sleep(0.01)
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
time.sleep(600)
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEP], env={**os.environ, VARIABLE: "another"}
    )
    yield process
    process.kill()
    process.wait()


Begin = Callable[[str, str], subprocess.Popen[bytes]]


@pytest.fixture
def begin() -> Iterator[Begin]:
    begun = []

    def leader(cell_id: str, code: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, VARIABLE: cell_id}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
        )
        begun.append(process)
        assert process.stdout.readline(), "it has begun its work"
        process.stdout.close()
        return process

    yield leader
    for process in begun:
        process.kill()
        process.wait()


def test_everyone_with_the_mark_ends_and_nobody_else(
    begin: Begin, bystander: subprocess.Popen[bytes]
) -> None:
    cell_id = new_cell_id()
    leader = begin(cell_id, STUBBORN)
    # one that has just begun may not show its environment yet
    wait_until(lambda: len(marked(cell_id)) >= 2)
    found = marked(cell_id)
    assert leader.pid in found
    assert len(found) == 2, "the child in another session is found too"
    assert end_all(cell_id, leader.pid, grace_s=0.3) == []
    assert not any(is_alive(pid) for pid in found)
    assert bystander.poll() is None


def test_a_leader_that_listens_goes_without_force(begin: Begin) -> None:
    cell_id = new_cell_id()
    leader = begin(cell_id, SLEEP)
    assert end_all(cell_id, leader.pid, grace_s=5.0) == []
    assert not is_alive(leader.pid)


def test_who_took_off_the_mark_is_not_waited_for(begin: Begin) -> None:
    cell_id = new_cell_id()
    leader = begin(cell_id, UNMARKED)
    (child,) = set(marked(cell_id)) - {leader.pid}
    try:
        assert end_all(cell_id, leader.pid, grace_s=5.0) == []
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_id_that_leads_no_group_is_left_alone(bystander: subprocess.Popen[bytes]) -> None:
    assert end_all(new_cell_id(), 0, grace_s=0.1) == []
    assert bystander.poll() is None
