"""Clients that leave, 200 in a row, in four ways: all sequences and pages are free again within a second each time.

Ways: leaving the loop, closing the connection, a deadline that passes, and a client process killed with SIGKILL.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.pair import DOMAINS, Pair, Prompt, add_arguments, chosen
from benchmarks.row import Row, note
from deploy.processes import LocalCell
from dspark.client import Client, DeadlineExceeded

BAR_S = 1.0
GIVE_UP_S = 10.0
PROCESSES = 3

_VICTIM = """
import json, sys
from dspark.client import Client
stream = Client(sys.argv[1]).generate(json.loads(sys.argv[2]), max_tokens=int(sys.argv[3]), ignore_eos=True)
for number, event in enumerate(stream):
    if number == 2: print("running", flush=True)
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cancel", description=__doc__)
    add_arguments(parser)
    parser.add_argument("--times", type=int, default=200)
    args = parser.parse_args(argv)
    pair = chosen(args)
    prompts = [prompt for domain in DOMAINS for prompt in pair.prompts(domain, 4)]
    ways: list[Callable[[str, Pair, Prompt, int], None]] = [_leave, _close, _late, _killed]
    waits: list[float] = []
    leaks = 0
    with LocalCell(pair.target, pair.drafter) as cell, cell.client() as watcher:
        _free_again(watcher)
        for number in range(args.times):
            prompt = prompts[number % len(prompts)]
            # Long answers, so that every client leaves in the middle; a little later each time.
            length = pair.context_length - len(pair.token_ids(prompt)) - 16
            ways[number % len(ways)](cell.endpoint, pair, prompt, length)
            wait = _free_again(watcher)
            waits.append(wait)
            leaks += wait >= GIVE_UP_S
            if (number + 1) % 50 == 0:
                note(f"{number + 1} of {args.times}, slowest {max(waits) * 1000:.0f} ms")
    value = {"times": len(waits), "slowest_ms": round(max(waits) * 1000), "leaks": leaks}
    bar = f"sequences and pages zero in both pools within {BAR_S:.0f} s, every time"
    return Row(9, "a client that leaves frees everything", value, bar, max(waits) <= BAR_S).show(as_json=args.json)


def _leave(endpoint: str, pair: Pair, prompt: Prompt, length: int) -> None:
    with Client(endpoint) as client:
        for number, _ in enumerate(client.generate(prompt, max_tokens=length, ignore_eos=True)):
            if number == 2:
                break


def _close(endpoint: str, pair: Pair, prompt: Prompt, length: int) -> None:
    client = Client(endpoint)
    stream = client.generate(prompt, max_tokens=length, ignore_eos=True)
    next(stream)
    client.close()


def _late(endpoint: str, pair: Pair, prompt: Prompt, length: int) -> None:
    with Client(endpoint) as client:
        try:
            client.complete(prompt, max_tokens=length, ignore_eos=True, timeout=0.05)
        except DeadlineExceeded:
            return
    raise AssertionError("an answer that long was done in 50 ms")


def _killed(endpoint: str, pair: Pair, prompt: Prompt, length: int) -> None:
    import json

    command = [sys.executable, "-c", _VICTIM, endpoint, json.dumps(prompt), str(length)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        victim.kill()


def _free_again(watcher: Client) -> float:
    """Seconds until every process answers and none holds a sequence or a page; one that is silent does not count."""
    began = time.monotonic()
    while True:
        processes = watcher.status().processes
        waited = time.monotonic() - began
        answering = len(processes) == PROCESSES and all(p.state == "serving" and not p.detail for p in processes)
        held = any(process.sequences or process.pages_held for process in processes)
        if (answering and not held) or waited > GIVE_UP_S:
            return waited
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main())
