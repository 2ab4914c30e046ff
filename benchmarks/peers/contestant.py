"""What is compared: programs that answer prompts, and the base of those that must be started."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

ROOT = Path(__file__).resolve().parents[2]
NOT_INSTALLED = "peer not installed"
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 180.0, 600.0  # of a worker
ENDS_S = 30.0  # for a program to end after SIGTERM


class Contestant(Protocol):
    """Answers prompts. name: in the table. most: prompts it takes at one time; 0: any number."""

    name: str
    most: int

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """Exactly `tokens` greedy ids behind each prompt, all asked at once, stop tokens
        ignored."""


class PeerUnavailable(Exception):
    """A peer is not available; the message says why."""


class Peer(ABC):
    """A program that runs in an environment of its own and ends with this process; a context
    manager.

    python: interpreter of that environment; raises Absent without one.
    """

    def __init__(self, python: Path | None) -> None:
        if python is None or not python.is_file():
            raise PeerUnavailable(
                NOT_INSTALLED if python is None else f"{NOT_INSTALLED}: {python} is no file"
            )
        self.python = python
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], **pipes: Any
    ) -> subprocess.Popen[bytes]:
        """Starts the environment's python with these words. Threads are the program's own
        choice."""
        leash = ("-m", "benchmarks.peers.leash", str(os.getpid()))
        command = [sys.executable, *leash, str(self.python), *words]
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in ("OMP_NUM_THREADS", "PYTHONPATH")
        }
        self._process = subprocess.Popen(command, cwd=ROOT, env=kept | dict(environment), **pipes)
        return self._process

    @abstractmethod
    def await_ready(self) -> None:
        """Starts the program; returns when it takes requests. Raises Absent otherwise."""

    def close(self) -> None:
        if self._process is not None:
            with self._process as process:  # closes its pipes after its end
                process.terminate()
                try:
                    process.wait(ENDS_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            self._process = None

    def __enter__(self) -> Self:
        try:
            self.await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class PeerWorker(Peer):
    """A library in a process of its own, which keeps its threads, memory and packages apart from
    the client's: a JSON line with prompts in, a JSON line with the ids out.

    `python -m module words...` is its command.
    """

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
            raise PeerUnavailable(f"{self._module} said nothing for {timeout_s:g} s")
        line = self._running.stdout.readline()
        if not line:
            raise PeerUnavailable(f"{self._module} ended with status {self._running.wait()}")
        ids: list[list[int]] = json.loads(line)
        return ids


def serve(answer: Callable[[dict[str, Any]], list[list[int]]]) -> None:
    """The worker's loop: reports that it is ready, then answers line by line."""
    print("[]", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
