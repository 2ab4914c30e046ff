"""A library in a process of its own: a JSON line with prompts in, a JSON line with the ids out.

A process of its own keeps its threads, memory and packages apart from the client's, as every server's are.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.contestant import NOT_INSTALLED, Absent

START_TIMEOUT_S, ANSWER_TIMEOUT_S = 180.0, 600.0
ROOT = Path(__file__).resolve().parents[2]


class PeerWorker:
    """A running worker; a context manager. `python -m module words...` is its command."""

    def __init__(self, python: Path | str | None, module: str, words: Sequence[str]) -> None:
        if python is None or not Path(python).is_file():
            raise Absent(NOT_INSTALLED if python is None else f"{NOT_INSTALLED}: {python} is no file")
        self._module = module
        self._command = [str(python), "-m", module, f"--parent-pid={os.getpid()}", *words]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # The libraries' own default of threads; the worker sets them as it is told.
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        environment["PYTHONPATH"] = str(ROOT)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=environment,
        )
        try:
            self._read(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def ask(self, **asked: Any) -> dict[str, Any]:
        """The worker's answer to one line."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        return self._read(ANSWER_TIMEOUT_S)

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise Absent(f"{self._module} said nothing for {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise Absent(f"{self._module} ended with status {self._process.wait()}")
        content: dict[str, Any] = json.loads(line)
        return content

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(parent: int, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The worker's side: says that it is ready, then answers line by line, until the benchmark that asks is gone."""
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
