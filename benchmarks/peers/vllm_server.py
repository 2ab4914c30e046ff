"""vLLM's CPU build as an OpenAI-style server, from an environment of its own.

How to install it: benchmarks/README.md. Intel's OpenMP is preloaded where the environment has it,
as vLLM's own log advises.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.contestant import Peer, PeerUnavailable
from deploy.head import free_ports
from dspark.client import Options
from dspark.loadgen.openai_endpoint import OpenAiEndpoint
from dspark.loadgen.prompts import Question

START_TIMEOUT_S = 900.0  # the first start with a model compiles, for many layers as long as this
ANSWER_TIMEOUT_S = 300.0
MODEL = "peer"
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 4,
    "prompt_lookup_min": 2,
}


class VllmServer(Peer):
    """One server. `ngram`: with vLLM's own speculation out of the prompt and the answer so far."""

    most = 0

    def __init__(
        self,
        name: str,
        python: Path | None,
        target: Path,
        cores: Sequence[int],
        *,
        dtype: str = "float32",
        ngram: bool = False,
    ) -> None:
        super().__init__(python)
        self.name = name
        self._target, self._cores = target, cores
        self._dtype, self._ngram = dtype, ngram
        self._runner = asyncio.Runner()
        (port,) = free_ports(1)
        self._address = f"127.0.0.1:{port}"

    def await_ready(self) -> None:
        host, _, port = self._address.partition(":")
        # Its console script wants a distribution named `vllm`; the module does not.
        serve = ["-m", "vllm.entrypoints.openai.api_server", f"--model={self._target}"]
        serve += [f"--served-model-name={MODEL}", f"--dtype={self._dtype}"]
        serve += [f"--host={host}", f"--port={port}"]
        serve += ["--max-model-len=1024", "--max-num-seqs=64", "--no-enable-log-requests"]
        serve += ["--disable-uvicorn-access-log"]
        if self._ngram:
            serve.append(f"--speculative-config={json.dumps(NGRAM)}")
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed with the server
        leash = self.start(serve, self._environment(), stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if leash.poll() is not None:
                raise PeerUnavailable(f"vLLM did not start: {self._last_words()}")
            try:
                with urllib.request.urlopen(f"http://{self._address}/health", timeout=5):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.5)
        raise PeerUnavailable(
            f"vLLM did not start within {START_TIMEOUT_S:g} s: {self._last_words()}"
        )

    def _environment(self) -> dict[str, str]:
        environment = {
            "VLLM_CPU_OMP_THREADS_BIND": _spans(self._cores),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        # where the package intel-openmp puts it
        intel = self.python.parent.parent / "lib" / "libiomp5.so"
        return environment | ({"LD_PRELOAD": str(intel)} if intel.is_file() else {})

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
        endpoint = OpenAiEndpoint(
            f"http://{self._address}/v1",
            MODEL,
            Options(max_tokens=tokens, temperature=0.0, ignore_eos=True),
        )
        pieces = endpoint.stream(Question(tuple(prompt)), 0)
        return [token async for piece in pieces for token in piece.token_ids]

    def close(self) -> None:
        super().close()
        self._log.close()
        self._runner.close()


def _spans(cores: Sequence[int]) -> str:
    """Cores as vLLM wants them: "0-1" for a row of neighbours, else a list."""
    first, last = min(cores), max(cores)
    neighbours = last - first + 1 == len(cores)
    return f"{first}-{last}" if neighbours else ",".join(str(core) for core in cores)
