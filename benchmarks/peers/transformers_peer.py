"""transformers `generate`, plain and assisted, each at its best setting on this machine.

How many threads help, and how many tokens an assistant should draft, depends on machine and models. So a short trial
decides before anything is measured, and the result says what was chosen: a baseline is worth beating only at its best.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.peers.contestant import Reply

START_TIMEOUT_S, ANSWER_TIMEOUT_S = 180.0, 300.0
TRIAL_TOKENS = 40
# (tokens drafted at once, confidence below which the assistant stops); None is the library's default.
ASSISTANT_SETTINGS: tuple[tuple[int, float] | None, ...] = (None, (2, 0.0), (4, 0.0), (8, 0.4))

Settings = dict[str, Any]


class TransformersPeer:
    """A worker process with the target and, if given, an assistant; a context manager."""

    def __init__(self, target: Path, assistant: Path | None, cores: Sequence[int]) -> None:
        self._folders = (target, assistant)
        self._threads = sorted({1, len(cores)})
        self._process: subprocess.Popen[bytes] | None = None
        self.settings: dict[bool, Settings] = {False: {}, True: {}}  # by whether the assistant takes part

    @property
    def plain(self) -> _Mode:
        return _Mode("transformers generate", self, assisted=False)

    @property
    def assisted(self) -> _Mode:
        return _Mode("transformers assisted", self, assisted=True)

    def __enter__(self) -> Self:
        target, assistant = self._folders
        command = [sys.executable, "-m", "benchmarks.peers.transformers_worker", f"--target={target}"]
        command += [f"--assistant={assistant}"] if assistant else []
        command.append(f"--parent-pid={os.getpid()}")
        # The libraries' own default of threads; the worker sets torch's as it is told.
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        try:
            self._read(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise
        return self

    def tune(self, prompts: Sequence[list[int]]) -> None:
        """Chooses threads and the assistant's settings by the time short answers to `prompts` take."""
        self.settings[False] = self._best(prompts, [{"threads": n} for n in self._threads], assisted=False)
        if self._folders[1] is not None:
            drafts = [{"assistant_tokens": s[0], "confidence": s[1]} if s else {} for s in ASSISTANT_SETTINGS]
            candidates = [self.settings[False] | extra for extra in drafts]
            self.settings[True] = self._best(prompts, candidates, assisted=True)

    def _best(self, prompts: Sequence[list[int]], candidates: list[Settings], *, assisted: bool) -> Settings:
        taken = []
        for settings in candidates:
            self.ask(prompts[0], TRIAL_TOKENS, settings, assisted=assisted)
            replies = [self.ask(prompt, TRIAL_TOKENS, settings, assisted=assisted) for prompt in prompts]
            taken.append(sum(reply.seconds for reply in replies))
        return candidates[taken.index(min(taken))]

    def ask(self, prompt: list[int], tokens: int, settings: Settings, *, assisted: bool) -> Reply:
        assert self._process is not None
        assert self._process.stdin is not None
        began = time.perf_counter()
        line = json.dumps({"prompt": prompt, "tokens": tokens, "assisted": assisted, **settings})
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        answer = self._read(ANSWER_TIMEOUT_S)
        return Reply(tuple(answer["ids"]), time.perf_counter() - began, answer["rounds"] if assisted else 0)

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise SystemExit(f"the transformers worker did not answer within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the transformers worker ended with status {self._process.wait()}")
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


class _Mode:
    """One of the two ways to ask."""

    def __init__(self, name: str, peer: TransformersPeer, *, assisted: bool) -> None:
        self.name = name
        self._peer = peer
        self._assisted = assisted

    def ask(self, prompt: list[int], tokens: int) -> Reply:
        return self._peer.ask(prompt, tokens, self._peer.settings[self._assisted], assisted=self._assisted)
