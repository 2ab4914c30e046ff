"""Synthetic workers as processes of their own, without a coordinator: whoever measures brings the lane."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

FLAT = Path(__file__).resolve().parent / "synthetic" / "flat.yaml"
TOKENS_EACH = 1 << 15  # token slots of one sequence
STOP_S = 10.0


class SyntheticWorkers:
    """A context manager that leaves nothing behind. room: sequences that each worker can hold."""

    def __init__(self, file: Path = FLAT, *, room: int = 256, verifiers: int = 1, drafters: int = 1) -> None:
        self._file, self._room = file, room
        self._counts = {"verify": verifiers, "draft": drafters}
        self._running: list[tuple[str, subprocess.Popen[bytes], str]] = []

    def __enter__(self) -> Self:
        begun = [(role, self._spawn(role)) for role, count in self._counts.items() for _ in range(count)]
        try:
            for role, process in begun:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line:
                    raise RuntimeError(f"a synthetic {role} worker did not start")
                self._running.append((role, process, str(json.loads(line)["endpoint"])))
        except BaseException:
            _end([process for _, process in begun])
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _end([process for _, process, _ in self._running])

    def endpoints(self, role: str) -> list[str]:
        """Of the workers of one role."""
        return [endpoint for its, _, endpoint in self._running if its == role]

    def _spawn(self, role: str) -> subprocess.Popen[bytes]:
        pool = {"verify": "kv-tokens", "draft": "context-tokens"}[role]
        flags = {
            "engine": "synthetic",
            "synthetic": self._file,
            "max-sequences": self._room,
            pool: self._room * TOKENS_EACH,
            "log-format": "json",
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "dspark.cli.main", "serve", role, "--ready-json", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
        if process.stdout is not None:
            process.stdout.close()
