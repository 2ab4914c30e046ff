"""transformers: `generate`, prompt lookup, and assisted generation where an assistant is at hand.

How many threads help depends on the machine, so a short trial decides before anything is measured:
a baseline is worth beating only at its best. As a program it is the worker: `generate` as a user
would call it, in float32.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contestant import PeerWorker, serve

TRIAL_TOKENS = 24
LOOKUP_SLOTS = 4  # tokens that prompt lookup proposes at a time


class TransformersWorker(PeerWorker):
    """One process for all modes."""

    def __init__(self, target: Path, assistant: Path | None, cores: Sequence[int]) -> None:
        words = [f"--target={target}", *([f"--assistant={assistant}"] if assistant else [])]
        super().__init__(Path(sys.executable), "benchmarks.peers.transformers_peer", words)
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


def main(argv: list[str] | None = None) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant", default="")
    args = parser.parse_args(argv)

    def load(folder: str) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        # answers have one length, and no penalty that the target's own file asks for
        settings = model.generation_config
        settings.eos_token_id, settings.repetition_penalty = None, 1.0
        return model

    target = load(args.target)
    extra: dict[str, dict[str, Any]] = {
        "generate": {},
        "prompt lookup": {"prompt_lookup_num_tokens": LOOKUP_SLOTS},
    }
    if args.assistant:
        extra["assisted"] = {"assistant_model": load(args.assistant)}

    @torch.inference_mode()
    def answer(asked: dict[str, Any]) -> list[list[int]]:
        torch.set_num_threads(asked["threads"])
        prompts, longest = asked["prompts"], max(map(len, asked["prompts"]))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        out = target.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=asked["tokens"],
            pad_token_id=0,
            **extra[asked["mode"]],
        )
        answers: list[list[int]] = out[:, longest:].tolist()
        return answers

    serve(answer)


if __name__ == "__main__":
    main()
