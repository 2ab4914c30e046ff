"""Row 17, real sockets: clients that leave, one after the other, in four ways; all they held is
free within a second.

Ways: leaving the loop, closing the connection, a deadline that passes, and a client process killed
with SIGKILL.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.row import Row, note
from dspark.client import Client, DeadlineExceeded
from faults import pair
from faults.processes import FaultCell
from faults.rows.program import Args, Rows

BAR_S = 1.0
GIVE_UP_S = 10.0
PROCESSES = 3
TIMES, LONG_TIMES = 24, 200
LENGTH = 3000  # tokens: every client leaves in the middle

_VICTIM = """
import json, sys
from dspark.client import Client
prompt, length = json.loads(sys.argv[2]), int(sys.argv[3])
stream = Client(sys.argv[1]).generate(prompt, max_tokens=length, ignore_eos=True)
for number, event in enumerate(stream):
    if number == 2: print("running", flush=True)
"""


def rows(args: Args) -> Rows:
    value, holds = measure(LONG_TIMES if args.long else TIMES)
    bar = f"sequences and pages zero in both pools within {BAR_S:g} s, every time"
    yield Row("17", "a client that leaves frees everything", value, bar, holds)


def measure(times: int) -> tuple[dict[str, int], bool]:
    """What came of it, and whether it is as good as the bar."""
    ways: list[Callable[[str, list[int]], None]] = [_leave, _close, _late, _killed]
    waits: list[float] = []
    with FaultCell() as cell, cell.client() as watcher:
        _free_again(watcher)
        for number in range(times):
            ways[number % len(ways)](cell.endpoint, pair.prompt(number))
            waits.append(_free_again(watcher))
            if (number + 1) % 50 == 0:
                note(f"{number + 1} of {times}, slowest {max(waits) * 1000:.0f} ms")
    leaks = sum(wait >= GIVE_UP_S for wait in waits)
    return {"times": times, "slowest_ms": round(max(waits) * 1000), "leaks": leaks}, max(
        waits
    ) <= BAR_S


def _leave(endpoint: str, prompt: list[int]) -> None:
    with Client(endpoint) as client:
        for number, _ in enumerate(client.generate(prompt, max_tokens=LENGTH, ignore_eos=True)):
            if number == 2:
                break


def _close(endpoint: str, prompt: list[int]) -> None:
    client = Client(endpoint)
    next(client.generate(prompt, max_tokens=LENGTH, ignore_eos=True))
    client.close()


def _late(endpoint: str, prompt: list[int]) -> None:
    with Client(endpoint) as client:
        try:
            client.complete(prompt, max_tokens=LENGTH, ignore_eos=True, timeout=0.05)
        except DeadlineExceeded:
            return
    raise AssertionError("an answer that long was done in 50 ms")


def _killed(endpoint: str, prompt: list[int]) -> None:
    command = [sys.executable, "-c", _VICTIM, endpoint, json.dumps(prompt), str(LENGTH)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        victim.kill()


def _free_again(watcher: Client) -> float:
    """Seconds until every process answers and none holds a sequence or a page; one that is silent
    does not count."""
    began = time.monotonic()
    while True:
        processes = watcher.status().processes
        waited = time.monotonic() - began
        answering = len(processes) == PROCESSES and all(
            p.state == "serving" and not p.detail for p in processes
        )
        held = any(process.sequences or process.pages_held for process in processes)
        if (answering and not held) or waited > GIVE_UP_S:
            return waited
        time.sleep(0.01)
