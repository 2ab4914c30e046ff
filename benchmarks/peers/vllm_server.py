"""vLLM's CPU build as an OpenAI-style server, from an environment of its own.

How to install it: benchmarks/README.md. Intel's OpenMP is preloaded where the environment has it, as vLLM's own log
advises.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.contestant import NOT_INSTALLED, Absent
from deploy.head import free_ports
from dspark.loadgen.openai_endpoint import OpenAiEndpoint, OpenAiOptions
from dspark.loadgen.prompts import Question

START_TIMEOUT_S = 900.0  # the first start with a model compiles, for many layers as long as this
ANSWER_TIMEOUT_S = 300.0
MODEL = "peer"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


class VllmServer:
    """One server; a context manager. `ngram`: with vLLM's own speculation out of the prompt and the answer so far.

    start_s: longest wait for it to serve.
    """

    most = 0

    def __init__(
        self,
        python: Path | None,
        target: Path,
        cores: Sequence[int],
        *,
        dtype: str = "float32",
        ngram: bool = False,
        start_s: float = START_TIMEOUT_S,
    ) -> None:
        if python is None or not Path(python).is_file():
            raise Absent(NOT_INSTALLED if python is None else f"{NOT_INSTALLED}: {python} is no file")
        self.name = f"vllm {dtype}{' ngram' if ngram else ''}"
        self._python = Path(python)
        self._target = target
        self._cores = cores
        self._dtype, self._ngram = dtype, ngram
        self._start_s = start_s
        self._leash: subprocess.Popen[bytes] | None = None
        self._runner = asyncio.Runner()
        self.url = ""

    def __enter__(self) -> Self:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}/v1"
        # Its console script wants a distribution named `vllm`; the module does not.
        serve = [str(self._python), "-m", "vllm.entrypoints.openai.api_server", f"--model={self._target}"]
        serve += [f"--served-model-name={MODEL}", f"--dtype={self._dtype}", "--host=127.0.0.1", f"--port={port}"]
        serve += ["--max-model-len=1024", "--max-num-seqs=64", "--no-enable-log-requests"]
        serve += ["--disable-uvicorn-access-log"]
        if self._ngram:
            serve.append(f"--speculative-config={json.dumps(NGRAM)}")
        self._log = tempfile.TemporaryFile()
        command = [sys.executable, "-m", "benchmarks.peers.leash", str(os.getpid()), *serve]
        self._leash = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._environment())
        try:
            self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def _environment(self) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", "PYTHONPATH")}
        environment |= {
            "VLLM_CPU_OMP_THREADS_BIND": _spans(self._cores),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        intel = self._python.parent.parent / "lib" / "libiomp5.so"  # where the package intel-openmp puts it
        if intel.is_file():
            environment["LD_PRELOAD"] = str(intel)
        return environment

    def _await_ready(self) -> None:
        assert self._leash is not None
        deadline = time.monotonic() + self._start_s
        while time.monotonic() < deadline:
            if self._leash.poll() is not None:
                raise Absent(f"vLLM did not start: {self._last_words()}")
            try:
                with urllib.request.urlopen(self.url.removesuffix("/v1") + "/health", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        raise Absent(f"vLLM did not start within {self._start_s:g} s: {self._last_words()}")

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it said nothing"])[-1][-300:]

    def answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        return self._runner.run(self._answers(prompts, tokens))

    async def _answers(self, prompts: Sequence[list[int]], tokens: int) -> list[list[int]]:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.gather(*(self._answer(prompt, tokens) for prompt in prompts))

    async def _answer(self, prompt: list[int], tokens: int) -> list[int]:
        endpoint = OpenAiEndpoint(OpenAiOptions(self.url, MODEL, max_tokens=tokens), self.name)
        pieces = endpoint.stream(Question(tuple(prompt)), 0)
        return [token async for piece in pieces for token in piece.token_ids]

    def close(self) -> None:
        if self._leash is not None:
            self._leash.terminate()
            self._leash.wait(30)
            self._leash = None
            self._log.close()
        self._runner.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _spans(cores: Sequence[int]) -> str:
    """Cores as vLLM wants them: "0-1" for a row of neighbours, else a list."""
    first, last = min(cores), max(cores)
    neighbours = last - first + 1 == len(cores)
    return f"{first}-{last}" if neighbours else ",".join(str(core) for core in cores)
