"""transformers: `generate`, prompt lookup, and assisted generation where an assistant is at hand.

How many threads help depends on the machine, so a short trial decides before anything is measured:
a baseline is worth beating only at its best.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.contestant import PeerWorker

TRIAL_TOKENS = 24


class TransformersWorker(PeerWorker):
    """One process for all modes."""

    def __init__(self, target: Path, assistant: Path | None, cores: Sequence[int]) -> None:
        words = [f"--target={target}", *([f"--assistant={assistant}"] if assistant else [])]
        super().__init__(Path(sys.executable), "benchmarks.peers.transformers_worker", words)
        self._cores = cores
        self._assisted = assistant is not None
        self.threads = 1

    def modes(self) -> list[TransformersMode]:
        """The contestants."""
        names = ("generate", "prompt lookup", *(["assisted"] if self._assisted else []))
        return [TransformersMode(self, name) for name in names]

    def tune(self, prompt: list[int]) -> None:
        """Chooses the threads by the time that a short answer takes."""
        taken = {}
        for threads in sorted({1, len(self._cores)}):
            self.run([prompt], 2, "generate", threads)
            began = time.perf_counter()
            self.run([prompt], TRIAL_TOKENS, "generate", threads)
            taken[threads] = time.perf_counter() - began
        self.threads = min(taken, key=taken.__getitem__)

    def run(
        self, prompts: Sequence[list[int]], tokens: int, mode: str, threads: int
    ) -> list[list[int]]:
        return self.ask(prompts=prompts, tokens=tokens, mode=mode, threads=threads)


class TransformersMode:
    """One mode. Several prompts are one padded batch, which only `generate` supports."""

    def __init__(self, worker: TransformersWorker, mode: str) -> None:
        self.name = f"transformers {mode}"
        self.most = 0 if mode == "generate" else 1
        self._worker, self._mode = worker, mode

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        return self._worker.run(prompts, tokens, self._mode, self._worker.threads)
