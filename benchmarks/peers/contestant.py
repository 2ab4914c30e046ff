"""What is compared: programs that answer prompts, and the base of those that must be started."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

ROOT = Path(__file__).resolve().parents[2]
NOT_INSTALLED = "peer not installed"
ENDS_S = 30.0  # for a program to end after SIGTERM


class Contestant(Protocol):
    """Answers prompts. name: in the table. most: prompts it takes at one time; 0: any number."""

    name: str
    most: int

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        """Exactly `tokens` greedy ids behind each prompt, all asked at once, stop tokens
        ignored."""


class Absent(Exception):
    """A peer is not available; the message says why."""


class Peer(ABC):
    """A program that runs in an environment of its own and ends with this process; a context
    manager.

    python: interpreter of that environment; raises Absent without one.
    """

    def __init__(self, python: Path | None) -> None:
        if python is None or not python.is_file():
            raise Absent(
                NOT_INSTALLED if python is None else f"{NOT_INSTALLED}: {python} is no file"
            )
        self.python = python
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], **pipes: Any
    ) -> subprocess.Popen[bytes]:
        """Starts the environment's python with these words. Threads are the program's own
        choice."""
        command = [
            sys.executable,
            "-m",
            "benchmarks.peers.leash",
            str(os.getpid()),
            str(self.python),
            *words,
        ]
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
