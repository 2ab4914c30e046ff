"""A library in a process of its own: a JSON line with prompts in, a JSON line with the ids out.

A process of its own keeps its threads, memory and packages apart from the client's, as every
server's are.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contestant import Absent, Peer

START_TIMEOUT_S, ANSWER_TIMEOUT_S = 180.0, 600.0


class PeerWorker(Peer):
    """A running worker. `python -m module words...` is its command."""

    def __init__(self, python: Path | None, module: str, words: Sequence[str]) -> None:
        super().__init__(python)
        self._module, self._words = module, words

    def await_ready(self) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._running = self.start(["-m", self._module, *self._words], {}, **pipes)
        self._read(START_TIMEOUT_S)

    def ask(self, **asked: Any) -> list[list[int]]:
        """Sends one request line; returns the worker's ids. Raises Absent."""
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps(asked).encode() + b"\n")
        self._running.stdin.flush()
        return self._read(ANSWER_TIMEOUT_S)

    def _read(self, timeout_s: float) -> list[list[int]]:
        assert self._running.stdout is not None
        if not select.select([self._running.stdout], [], [], timeout_s)[0]:
            raise Absent(f"{self._module} said nothing for {timeout_s:g} s")
        line = self._running.stdout.readline()
        if not line:
            raise Absent(f"{self._module} ended with status {self._running.wait()}")
        ids: list[list[int]] = json.loads(line)
        return ids


def serve(answer: Callable[[dict[str, Any]], list[list[int]]]) -> None:
    """The worker's loop: reports that it is ready, then answers line by line."""
    print("[]", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
