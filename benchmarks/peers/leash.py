"""Runs a command in a process group of its own and ends the whole group when the benchmark that
asked for it is gone.

    python -m benchmarks.peers.leash PARENT_PID COMMAND...

Other projects' servers start processes of their own and know nothing of ours; a benchmark killed
with SIGKILL would leave them running. SIGTERM and SIGINT to the leash end the group too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

LOOK_S = 0.5
GRACE_S = 8.0


def main(argv: list[str]) -> int:
    parent, command = int(argv[0]), argv[1:]
    child = subprocess.Popen(command, start_new_session=True)
    asked = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, frame: asked.append(n))
    while child.poll() is None and not asked and os.getppid() == parent:
        time.sleep(LOOK_S)
    _end(child)
    return child.returncode if child.returncode >= 0 else 1


def _end(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, SIGKILL to what is left of it; the group's leader may be gone while
    others are not."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and _alive(child):
        time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _alive(child: subprocess.Popen[bytes]) -> bool:
    child.poll()  # reaps the leader, so that it does not count
    try:
        os.killpg(child.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
