"""Synthetic workers as processes of their own, without a coordinator: whoever measures brings the lane, or more."""

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
POOLS = {"verify": "kv_tokens", "draft": "context_tokens"}
STOP_S = 15.0


class SyntheticWorkers:
    """A context manager that leaves nothing behind. room: sequences that each worker can hold, of so many tokens."""

    def __init__(
        self,
        file: Path = FLAT,
        *,
        room: int = 256,
        tokens_each: int = TOKENS_EACH,
        verifiers: int = 1,
        drafters: int = 1,
    ) -> None:
        self._flags = {"engine": "synthetic", "synthetic": file, "max_sequences": room}
        self._tokens, self._counts = room * tokens_each, {"verify": verifiers, "draft": drafters}
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._endpoints: list[tuple[str, str]] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def start(self) -> None:
        """Both pools at once, until everybody serves."""
        for role, count in self._counts.items():
            for _ in range(count):
                self.spawn(role, **self._flags, **{POOLS[role]: self._tokens})
        self._endpoints = [(role, self.ready(process)) for role, process in self._running]

    def endpoints(self, role: str) -> list[str]:
        """Of the workers of one role."""
        return [endpoint for its, endpoint in self._endpoints if its == role]

    def spawn(self, role: str, **flags: object) -> subprocess.Popen[bytes]:
        """Begins one more `dspark serve`; see `ready`."""
        words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        command = [sys.executable, "-m", "dspark.cli.main", "serve", role, "--ready-json", "--log-format=json", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._running.append((role, process))
        return process

    def ready(self, process: subprocess.Popen[bytes]) -> str:
        """Its endpoint, once it serves."""
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{process.args!r} did not start")
        return str(json.loads(line)["endpoint"])

    def _end(self) -> None:
        """Who came last is told first."""
        for _, process in reversed(self._running):
            process.send_signal(signal.SIGTERM)
        for _, process in self._running:
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
            if process.stdout is not None:
                process.stdout.close()
