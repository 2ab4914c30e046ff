"""Row 17, real sockets: clients that leave, one after the other, in four ways; all they held is
free within a second.

Ways: leaving the loop, closing the connection, a deadline that passes, and a client process killed
with SIGKILL.
"""

import json
import subprocess
import sys
import time

from benchmarks.row import note
from dspark.client import Client, DeadlineExceeded
from tests.faults import pair
from tests.faults.processes import FaultCell
from tests.faults.rows.program import Args, Rows, statement

BAR_S = 1.0
GIVE_UP_S = 10.0
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
    times, ways, waits = LONG_TIMES if args.long else TIMES, [_leave, _close, _late, _killed], []
    with FaultCell() as cell:
        for number in range(times):
            ways[number % len(ways)](cell.endpoint, pair.prompt(number))
            began = time.monotonic()
            cell.settled(GIVE_UP_S, everybody=True)
            waits.append(time.monotonic() - began)
            if (number + 1) % 50 == 0:
                note(f"{number + 1} of {times}, slowest {max(waits) * 1000:.0f} ms")
    leaks = sum(wait >= GIVE_UP_S for wait in waits)
    value = {"times": times, "slowest_ms": round(max(waits) * 1000), "leaks": leaks}
    bar = f"sequences and pages zero in both pools within {BAR_S:g} s, every time"
    yield statement(
        "17", "a client that leaves frees everything", value, {bar: max(waits) <= BAR_S}
    )


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
